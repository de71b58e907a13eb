"""One safetensors file, mapped: its header checked, its tensors handed out as views in blocks of rows.

Own reader, because bfloat16 has no NumPy type and because pages must leave the process again as soon as they are
packed. Knows nothing of models.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.errors import CheckpointError

# Weights are read in blocks of about this size: they stay in the cache while they are checksummed and packed.
BLOCK_BYTES = 1 << 20

# Types whose values can be packed. bfloat16 travels as its raw bits.
LOADABLE: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_AS_ARRAY: dict[str, type[np.generic]] = LOADABLE | {"U8": np.uint8}
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
_AGAIN = "the file is damaged or was not copied completely; copy or download it again"


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: dtype as the file spells it, shape, and bytes [start, end) of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class SafetensorsFile:
    """A mapped file. `tensors` is complete and checked against the file's size before anything is read."""

    metadata: dict[str, str]

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                if self.size < 8:
                    raise CheckpointError(f"{path.name} is {self.size} bytes long, too short for a header", hint=_AGAIN)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
        self._map.madvise(mmap.MADV_SEQUENTIAL)
        self.tensors = self._read_header()

    def _read_header(self) -> dict[str, TensorEntry]:
        length = int.from_bytes(self._map[:8], "little")
        body = 8 + length
        if body > self.size:
            raise CheckpointError(
                f"{self.path.name} announces a header of {length} bytes but is {self.size} bytes long", hint=_AGAIN
            )
        try:
            header = json.loads(self._map[8:body])
            entries = {name: self._entry(name, item, body) for name, item in header.items() if name != "__metadata__"}
            self.metadata = {str(key): str(value) for key, value in header.get("__metadata__", {}).items()}
        except CheckpointError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"the header of {self.path.name} is not safetensors: {error}", hint=_AGAIN) from None
        needed = max((entry.end for entry in entries.values()), default=body)
        if needed > self.size:
            raise CheckpointError(
                f"{self.path.name} is truncated: its tensors need {needed} bytes, it has {self.size}", hint=_AGAIN
            )
        return entries

    def _entry(self, name: str, item: dict[str, Any], body: int) -> TensorEntry:
        dtype, shape, (begin, end) = str(item["dtype"]), tuple(item["shape"]), item["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
            raise ValueError(f"tensor {name} has shape {list(shape)} and offsets {begin} to {end}")
        expected = math.prod(shape) * _ITEM_BYTES.get(dtype, 0)
        if (dtype in _ITEM_BYTES and end - begin != expected) or begin > end:
            raise CheckpointError(
                f"{self.path.name}: tensor {name} of {dtype} {list(shape)} needs {expected} bytes, "
                f"its offsets are {begin} to {end}",
                hint=_AGAIN,
            )
        return TensorEntry(dtype, shape, body + begin, body + end)

    def array(self, name: str) -> NDArray[np.generic]:
        """A whole tensor as a view of the map; for small ones and for comparisons."""
        entry = self.tensors[name]
        count = math.prod(entry.shape)
        return np.frombuffer(self._map, _AS_ARRAY[entry.dtype], count, entry.start).reshape(entry.shape)

    def blocks(self, name: str) -> Iterator[tuple[int, NDArray[np.generic]]]:
        """(first row, rows) of a matrix, a block at a time. A block's view is dead once the next is asked for."""
        entry = self.tensors[name]
        rows, columns = entry.shape
        row_bytes = columns * _ITEM_BYTES[entry.dtype]
        step = max(1, BLOCK_BYTES // max(row_bytes, 1))
        done = entry.start
        for row in range(0, rows, step):
            count = min(step, rows - row)
            start = entry.start + row * row_bytes
            block = np.frombuffer(self._map, LOADABLE[entry.dtype], count * columns, start).reshape(count, columns)
            # A tensor may start at any byte of the file; kernels want aligned items.
            yield row, block if block.flags.aligned else block.copy()
            done = self._forget(done, start + count * row_bytes)

    def _forget(self, start: int, end: int) -> int:
        """Drop whole pages of [start, end) from the process (they stay in the system's file cache)."""
        page = mmap.PAGESIZE
        first, last = start // page * page, end // page * page
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        return last
