"""The weights of a model folder: which file holds which tensor, whether all fit, and how one gets packed.

Owns names, shapes, sharding, skipped parts and the content digest. Knows no architecture: it is told what to expect.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from statemark.errors import CheckpointError
from statemark.kernels.reference import bf16_values
from statemark.models.backend import MatrixLike
from statemark.models.config import read_json
from statemark.models.digest import ContentDigest
from statemark.models.safetensors_file import LOADABLE, SafetensorsFile

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

# Text weights of multimodal checkpoints (and of text checkpoints cut out of them) carry the longer prefix.
_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_SKIPPED = {"vision": ("model.visual.", "visual."), "mtp (draft head)": ("mtp.", "model.mtp.")}
_SHOWN = 5
# Rows that a kernel packs together: threads take whole multiples.
_PACKED_ROWS = 32


def fill_by(threads: Executor, matrix: MatrixLike, row: int, block: NDArray[np.generic]) -> Iterator[int]:
    """Fill rows of `matrix` from `row` on, shared out to threads; the counts of values that are not finite."""
    share = -(-len(block) // (len(os.sched_getaffinity(0)) * _PACKED_ROWS)) * _PACKED_ROWS
    bounds = [0, *range(share - row % _PACKED_ROWS, len(block), share), len(block)]
    parts = [(row + start, block[start:end]) for start, end in pairwise(bounds)]
    return threads.map(lambda part: matrix.fill(*part), parts)


class Checkpoint:
    """All tensors of a folder under their text-model names. Nothing is read before it is asked for."""

    def __init__(self, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self.folder = folder
        self.notices: list[str] = []
        self.non_finite: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        self._progress, self._done, self._total = progress, 0, 0
        self._files = [SafetensorsFile(path) for path in _weight_files(folder)]
        self._where: dict[str, tuple[SafetensorsFile, str]] = {}
        skipped = dict.fromkeys(_SKIPPED, 0)
        for file in self._files:
            for stored in file.tensors:
                part = next((p for p, starts in _SKIPPED.items() if stored.startswith(starts)), None)
                if part is not None:
                    skipped[part] += 1
                    continue
                name = _text_name(stored)
                if name in self._where:
                    raise CheckpointError(f"tensor {name} is stored twice: in {self._file(name)} and {file.path.name}")
                self._where[name] = (file, stored)
        self.notices += [f"skipped {n} {part} weights: text only" for part, n in skipped.items() if n]

    def _file(self, name: str) -> str:
        return self._where[name][0].path.name

    def __contains__(self, name: str) -> bool:
        return name in self._where

    @property
    def names(self) -> list[str]:
        return sorted(self._where)

    def dtype(self, name: str) -> str:
        file, stored = self._where[name]
        return file.tensors[stored].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._where[name]
        return file.tensors[stored].shape

    def nbytes(self, name: str) -> int:
        file, stored = self._where[name]
        return file.tensors[stored].end - file.tensors[stored].start

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Every expected tensor is there, in its shape and in a type that can be packed, and no other is."""
        missing = sorted(set(expected) - set(self._where))
        if missing:
            hint = "the checkpoint is incomplete or of another architecture than its config says"
            if missing == ["lm_head.weight"]:
                hint = "set tie_word_embeddings to true in config.json if the model ties its embeddings"
            raise CheckpointError(f"{_count(missing, 'tensor')} missing: {_listed(missing)}", hint=hint)
        extra = sorted(set(self._where) - set(expected))
        if extra:
            raise CheckpointError(
                f"{_count(extra, 'tensor')} not part of this architecture: {_listed(extra)}",
                hint="adapters, quantised weights and other architectures are not supported",
            )
        for name, shape in expected.items():
            if self.shape(name) != shape:
                raise CheckpointError(
                    f"tensor {name} has shape {list(self.shape(name))}, expected {list(shape)} by config.json"
                )
            if self.dtype(name) not in LOADABLE:
                raise CheckpointError(
                    f"tensor {name} is stored as {self.dtype(name)}", hint=f"supported: {', '.join(LOADABLE)}"
                )

    def vector(self, name: str) -> NDArray[np.float32]:
        """A small tensor in float32, checked for NaN and infinity."""
        file, stored = self._where[name]
        raw = file.array(stored)
        digest = ContentDigest()
        digest.update(raw)
        self._finish(name, digest, raw.nbytes)
        values = bf16_values(raw.astype(np.uint16)) if raw.dtype == np.uint16 else raw.astype(np.float32)
        self.non_finite[name] = int(np.count_nonzero(~np.isfinite(values)))
        return values

    def pack(self, name: str, matrix: MatrixLike, row: int) -> None:
        """Fill `matrix` from `row` on, block by block; checksums and counts non-finite values in passing."""
        digest, bad = ContentDigest(), 0
        file, stored = self._where[name]
        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as threads:
            for first, block in file.blocks(stored):
                filled = fill_by(threads, matrix, row + first, block)
                digest.update(block)
                bad += sum(filled)
                self._report(block.nbytes)
        self.non_finite[name] = bad
        self._finish(name, digest, 0)

    def same(self, one: str, other: str) -> bool:
        """Whether two tensors hold the same bytes."""
        if self.shape(one) != self.shape(other) or self.dtype(one) != self.dtype(other):
            return False
        pairs = zip(self._blocks(one), self._blocks(other), strict=True)
        return all(np.array_equal(a.view(np.uint8), b.view(np.uint8)) for a, b in pairs)

    def forget(self, name: str) -> None:
        """Leave a tensor out of everything that follows."""
        del self._where[name]

    def rename(self, old: str, new: str) -> None:
        self._where[new] = self._where.pop(old)

    def check_finite(self) -> None:
        bad = {name: count for name, count in sorted(self.non_finite.items()) if count}
        if bad:
            shown = ", ".join(f"{name} ({count})" for name, count in list(bad.items())[:_SHOWN])
            more = f" and {len(bad) - _SHOWN} more tensors" if len(bad) > _SHOWN else ""
            raise CheckpointError(
                f"NaN or infinite weights in {shown}{more}",
                hint="the checkpoint is damaged or was trained to overflow; every answer would be NaN",
            )

    def content_digest(self) -> str:
        """Over name, dtype, shape and content of every tensor that was read; the same however they are sharded."""
        whole = hashlib.blake2b(digest_size=16)
        for name, digest in sorted(self._digests.items()):
            whole.update(f"{name} {self.dtype(name)} {self.shape(name)} {digest}\n".encode())
        return whole.hexdigest()

    def _blocks(self, name: str) -> Iterator[NDArray[np.generic]]:
        file, stored = self._where[name]
        return (block for _, block in file.blocks(stored))

    def _finish(self, name: str, digest: ContentDigest, nbytes: int) -> None:
        self._digests[name] = digest.hexdigest()
        self._report(nbytes)

    def _report(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None and nbytes:
            self._total = self._total or sum(map(self.nbytes, self._where))
            self._progress(self._done, self._total)


def _text_name(stored: str) -> str:
    for prefix, plain in _PREFIXES.items():
        if stored.startswith(prefix):
            return plain + stored[len(prefix) :]
    return stored


def _weight_files(folder: Path) -> list[Path]:
    index = folder / INDEX
    if index.exists():
        weight_map = read_json(index, "").get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{INDEX} has no weight_map")
        names = sorted({str(name) for name in weight_map.values()})
        outside = [name for name in names if Path(name).name != name]
        if outside:
            raise CheckpointError(
                f"{INDEX} names files that are not in the folder itself: {_listed(outside)}",
                hint="shards lie beside their index",
            )
        shards = [folder / name for name in names]
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            raise CheckpointError(
                f"{_count(absent, 'shard')} of {len(shards)} named in {INDEX} but absent: {_listed(absent)}",
                hint="copy or download the missing files",
            )
        return shards
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    others = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".gguf", ".safetensors"))
    found = f"; found {_listed(others)}" if others else ""
    raise CheckpointError(
        f"no {SINGLE} or {INDEX} in {folder}{found}", hint="weights are read from safetensors files of these names"
    )


def _count(items: list[str], noun: str) -> str:
    return f"{len(items)} {noun}{'s' if len(items) != 1 else ''}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
