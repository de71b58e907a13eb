"""Write a random-weight checkpoint folder without torch: for benchmarks, tests and bug reports.

Owns the file format on the way out and streams: memory does not grow with the model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.errors import ConfigurationError
from statemark.kernels.reference import bf16_bits
from statemark.models.checkpoint import SINGLE
from statemark.models.config import parse_config
from statemark.models.qwen3_5 import expected_tensors
from statemark.models.random_tokenizer import write_tokenizer
from statemark.models.random_weights import levels, table
from statemark.models.shapes import config_json, named_shape

_SPELLING = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}

# Published checkpoints keep these two in float32 whatever the rest is stored in.
_ALWAYS_FLOAT32 = ("A_log", "linear_attn.norm.weight")


@dataclass(frozen=True)
class MadeModel:
    path: Path
    parameters: int
    weight_bytes: int


def make_model(
    out: Path,
    *,
    like: str,
    scale: str = "full",
    seed: int = 0,
    dtype: str = "bfloat16",
    vocab: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MadeModel:
    """A model of a named shape with random weights. `progress` gets (bytes written, bytes in all)."""
    shape = named_shape(like, scale)
    if vocab is not None:
        shape = replace(shape, vocab=vocab)
    return write_model(out, config_json(shape, dtype), seed=seed, dtype=dtype, progress=progress)


def write_model(
    out: Path,
    config: dict[str, Any],
    *,
    seed: int,
    dtype: str,
    progress: Callable[[int, int], None] | None = None,
) -> MadeModel:
    """A complete folder for any valid config.json."""
    if dtype not in _SPELLING:
        raise ConfigurationError(f"dtype must be one of {', '.join(_SPELLING)}, got {dtype!r}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not an empty folder", hint="name a new folder")
    tensors = expected_tensors(parse_config(config))
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_tokenizer(out, config["vocab_size"])
        nbytes = write_weights(out / SINGLE, tensors, seed=seed, dtype=dtype, progress=progress)
        # Last, so that a folder with a config.json is a whole one.
        (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"can't write {out}: {error.strerror}", hint="choose a place with room") from error
    return MadeModel(out, sum(map(math.prod, tensors.values())), nbytes)


def write_weights(
    path: Path,
    tensors: dict[str, tuple[int, ...]],
    *,
    seed: int,
    dtype: str,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """One safetensors file of random tensors; returns the bytes of its tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    kinds: dict[str, str] = {}
    end = 0
    # Wide items first keep every tensor aligned to its item size.
    for name in sorted(tensors, key=lambda n: (not _is_float32(n), n)):
        kinds[name] = "F32" if _is_float32(name) else _SPELLING[dtype]
        begin, end = end, end + math.prod(tensors[name]) * _ITEM_BYTES[kinds[name]]
        header[name] = {"dtype": kinds[name], "shape": list(tensors[name]), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    done = 0
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, kind in kinds.items():
            for block in random_blocks(name, tensors[name], seed=seed, kind=kind):
                done += file.write(block.data)
                if progress is not None:
                    progress(done, end)
    return end


def random_blocks(name: str, shape: tuple[int, ...], *, seed: int, kind: str) -> Iterator[NDArray[np.generic]]:
    """A tensor's values, flat, in blocks, in the type `kind` (as safetensors spells it; BF16 as raw bits)."""
    values: NDArray[np.generic] = table(name, shape)
    if kind == "BF16":
        values = bf16_bits(values)
    elif kind == "F16":
        values = values.astype(np.float16)
    for block in levels(seed, name, math.prod(shape)):
        yield values[block]


def _is_float32(name: str) -> bool:
    return name.endswith(_ALWAYS_FLOAT32)
