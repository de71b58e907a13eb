"""What models need of the kernels, as types: the compiled kernels and the NumPy reference both fit.

A model is given a runtime and builds its matrices and layer descriptions from the module that the runtime is from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from statemark.kernels import reference

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class MatrixLike(Protocol):
    """Packed weights [rows, cols]."""

    @property
    def nbytes(self) -> int: ...
    def fill(self, row: int, w: NDArray[np.generic]) -> int: ...


class RuntimeLike(Protocol):
    """The operations of `statemark.kernels.Runtime` that a forward uses. Batch, arena and layers are opaque here."""

    @property
    def isa(self) -> str: ...
    def linear(self, x: F32, m: Any, out: F32, bias: F32 | None = None, accumulate: bool = False) -> None: ...
    def embed(self, ids: I32, m: Any, out: F32) -> None: ...
    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None: ...
    def swiglu(self, gate_up: F32, out: F32) -> None: ...
    def rope_tables(self, positions: I32, inv_freq: F32) -> tuple[F32, F32]: ...
    def gated_delta_net(self, gdn: Any, proj: F32, batch: Any, arena: Any, out: F32) -> None: ...
    def attention(self, att: Any, proj: F32, cos: F32, sin: F32, batch: Any, arena: Any, out: F32) -> None: ...


class Backend(Protocol):
    """The module beside a runtime."""

    @property
    def Matrix(self) -> Callable[..., MatrixLike]: ...  # noqa: N802
    @property
    def GatedDeltaNet(self) -> Callable[..., Any]: ...  # noqa: N802
    @property
    def Attention(self) -> Callable[..., Any]: ...  # noqa: N802


def backend_of(runtime: RuntimeLike) -> Backend:
    """The classes that belong to a runtime."""
    if isinstance(runtime, reference.Runtime):
        return cast(Backend, reference)
    from statemark import kernels

    return cast(Backend, kernels)
