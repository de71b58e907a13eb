"""A model folder with packed weights: one safetensors file whose matrices are mapped and used where they lie.

Owns the file: writing, checking, mapping. `statemark quantize` makes such folders. The file's metadata says how each
matrix is packed, of which checkpoint it was made, and the digest of every byte that is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.errors import CheckpointError
from statemark.models.backend import Backend, MatrixLike
from statemark.models.digest import ContentDigest
from statemark.models.safetensors_file import SafetensorsFile

STORED = "packed.safetensors"

# Raise it when the layout of packed matrices or the rounding of weights changes: `source` stands for the content.
LAYOUT = "1"
_ALIGNMENT = 64  # of every matrix in the file, and so in memory: a cache line
_AGAIN = "the file is damaged, or of another version; make it anew with `statemark quantize`"

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Packed:
    """How one matrix is packed. `names` are the tensors whose rows it holds, one below the other."""

    names: tuple[str, ...]
    dtype: str
    rows: int
    cols: int

    @property
    def key(self) -> str:
        return "+".join(self.names)


class StoredWeights:
    """See `weights.Weights`. Every byte is read once when the file is opened, to compare the digest."""

    def __init__(self, folder: Path, backend: Backend, progress: Callable[[int, int], None] | None = None) -> None:
        self._file = SafetensorsFile(folder / STORED)
        self._backend = backend
        facts = self._file.metadata
        if facts.get("format") != "statemark-packed" or facts.get("layout") != LAYOUT:
            found = f"{facts.get('format', 'no format')} {facts.get('layout', '')}".strip()
            raise CheckpointError(f"{STORED} is not of layout {LAYOUT}: {found}", hint=_AGAIN)
        self.quantization = str(facts.get("quantization"))
        self.source = str(facts.get("source"))
        try:
            self._packed = {p.key: p for p in map(_packed, json.loads(facts["matrices"]).items())}
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the metadata of {STORED} can't be read: {error}", hint=_AGAIN) from None
        if self._digest(progress) != facts.get("digest"):
            raise CheckpointError(f"the content of {STORED} is not what its digest says", hint=_AGAIN)

    @property
    def weight_bytes(self) -> int:
        return sum(entry.end - entry.start for entry in self._file.tensors.values() if entry.dtype == "U8")

    def __contains__(self, name: str) -> bool:
        return any(name in packed.names for packed in self._packed.values())

    def check(self, expected: Mapping[str, tuple[int, ...]]) -> None:
        """Every expected tensor is there in its shape, alone or as a part of a matrix, and no other is."""
        found: dict[str, tuple[int, ...]] = {n: e.shape for n, e in self._file.tensors.items() if e.dtype == "F32"}
        for packed in self._packed.values():
            shapes = [expected.get(name, (0, 0)) for name in packed.names]
            if packed.rows == sum(shape[0] for shape in shapes) and all(
                shape[1:] == (packed.cols,) for shape in shapes
            ):
                found |= dict(zip(packed.names, shapes, strict=True))
        wrong = sorted(set(found) ^ set(expected)) or [n for n in sorted(found) if found[n] != tuple(expected[n])]
        if wrong:
            raise CheckpointError(f"{STORED} doesn't hold what config.json says: {', '.join(wrong[:5])}", hint=_AGAIN)

    def matrix(self, *names: str) -> MatrixLike:
        packed = self._packed["+".join(names)]
        data = self._file.array(packed.key)
        try:
            return self._backend.Matrix(rows=packed.rows, cols=packed.cols, dtype=packed.dtype, packed=data)
        except ValueError as error:
            raise CheckpointError(f"{packed.key} in {STORED}: {error}", hint=_AGAIN) from None

    def vector(self, name: str) -> F32:
        return self._file.array(name).astype(np.float32)

    def _digest(self, progress: Callable[[int, int], None] | None) -> str:
        whole, done = hashlib.blake2b(digest_size=16), 0
        total = sum(entry.end - entry.start for entry in self._file.tensors.values())
        for name, entry in sorted(self._file.tensors.items()):
            if entry.dtype not in ("U8", "F32"):
                raise CheckpointError(f"tensor {name} in {STORED} is stored as {entry.dtype}", hint=_AGAIN)
            _add(whole, name, self._file.array(name))
            done += entry.end - entry.start
            if progress is not None:
                progress(done, total)
        return whole.hexdigest()


def _packed(item: tuple[str, Any]) -> Packed:
    key, (dtype, rows, cols) = item
    return Packed(tuple(key.split("+")), str(dtype), int(rows), int(cols))


def _add(whole: hashlib.blake2b, name: str, values: NDArray[np.generic]) -> None:
    digest = ContentDigest()
    digest.update(values)
    whole.update(f"{name} {values.dtype} {values.shape} {digest.hexdigest()}\n".encode())


def write_stored(
    path: Path,
    matrices: Mapping[Packed, NDArray[np.uint8]],
    vectors: Mapping[str, F32],
    *,
    quantization: str,
    source: str,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the file; returns the bytes of its tensors. `source`: the content digest of the checkpoint."""
    tensors: dict[str, NDArray[np.generic]] = {packed.key: data for packed, data in matrices.items()}
    tensors |= vectors  # after the matrices, whose sizes are whole cache lines
    whole = hashlib.blake2b(digest_size=16)
    for name, values in sorted(tensors.items()):
        _add(whole, name, values)
    facts = {
        "format": "statemark-packed",
        "layout": LAYOUT,
        "quantization": quantization,
        "source": source,
        "digest": whole.hexdigest(),
        "matrices": json.dumps({p.key: (p.dtype, p.rows, p.cols) for p in matrices}),
    }
    header: dict[str, Any] = {"__metadata__": facts}
    end = 0
    for name, values in tensors.items():
        begin, end = end, end + values.nbytes
        kind = "U8" if values.dtype == np.uint8 else "F32"
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(len(raw) + 8) % _ALIGNMENT)
    done = 0
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for values in tensors.values():
            done += file.write(np.ascontiguousarray(values).data)
            if progress is not None:
                progress(done, end)
    return end
