"""Scratch memory for activations, allocated once for the widest step seen and reused by every layer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Growing in whole steps keeps the number of reallocations small while batches vary.
_STEP_ROWS = 256


class Workspace:
    """Named float32 buffers of a fixed width. `rows` hands out the first n rows, C-contiguous, contents undefined."""

    def __init__(self, widths: dict[str, int]) -> None:
        self._widths = dict(widths)
        self._capacity = 0
        self._buffers: dict[str, NDArray[np.float32]] = {}

    @property
    def nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def reserve(self, rows: int) -> None:
        """Make room for `rows`. Views handed out before are dead when this grows."""
        if rows <= self._capacity:
            return
        self._capacity = -(-rows // _STEP_ROWS) * _STEP_ROWS
        self._buffers = {name: np.empty(self._capacity * w, dtype=np.float32) for name, w in self._widths.items()}

    def rows(self, name: str, rows: int, width: int | None = None) -> NDArray[np.float32]:
        """[rows, width] of a buffer; a narrower width than the buffer's shares its memory."""
        wide = self._widths[name] if width is None else width
        return self._buffers[name][: rows * wide].reshape(rows, wide)
