"""Where a model's matrices and vectors come from, as its builder sees it: packed while they are read, or stored packed.

Owns the type of each matrix. Knows no architecture: it is told which tensors share a matrix.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from statemark.models.backend import Backend, MatrixLike
from statemark.models.checkpoint import Checkpoint
from statemark.models.quantization import QUANTIZATIONS, packing_of

F32 = NDArray[np.float32]


class Weights(Protocol):
    """`matrix` is one matrix of the rows of several tensors, one below the other; `vector` a small tensor."""

    @property
    def weight_bytes(self) -> int: ...
    def matrix(self, *names: str) -> MatrixLike: ...
    def vector(self, name: str) -> F32: ...


class CheckpointWeights:
    """Packs a checkpoint's tensors as they are asked for. `dtype` is that of `ModelSpec`."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, dtype: str) -> None:
        self.vector = checkpoint.vector
        self.weight_bytes = 0
        self._checkpoint, self._backend, self._dtype = checkpoint, backend, dtype

    def packing(self, name: str) -> str:
        return packing_of(name, self._dtype) if self._dtype in QUANTIZATIONS else self._dtype

    def matrix(self, *names: str) -> MatrixLike:
        rows = [self._checkpoint.shape(name)[0] for name in names]
        columns = self._checkpoint.shape(names[0])[1]
        matrix = self._backend.Matrix(rows=sum(rows), cols=columns, dtype=self.packing(names[0]))
        first = 0
        for name, count in zip(names, rows, strict=True):
            self._checkpoint.pack(name, matrix, first)
            first += count
        self.weight_bytes += matrix.nbytes
        return matrix
