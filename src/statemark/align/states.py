"""Bytes of one layer's recurrent state on one rank, by kind of layer.

The formulas are those of vLLM 0.32's state shape and dtype calculators. Knows layers' dimensions and dtypes; nothing
of configs, blocks or groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from statemark.align.units import Bytes
from statemark.errors import ConfigurationError

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "half": 2, "float": 4}


def dtype_bytes(name: str) -> int:
    """Bytes of one element of a model or state dtype."""
    if name not in DTYPE_BYTES:
        raise ConfigurationError(f"unknown dtype {name!r}", hint=f"known are {', '.join(sorted(DTYPE_BYTES))}")
    return DTYPE_BYTES[name]


@dataclass(frozen=True)
class StateDtypes:
    """What the convolution window and the recurrent matrix are kept in, already resolved from flags and config."""

    conv: str
    recurrent: str


@dataclass(frozen=True)
class StateTensor:
    """One tensor of a layer's state."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)


class StateKind(Protocol):
    """A kind of recurrent layer: how large its state is."""

    @property
    def label(self) -> str: ...

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]: ...


def state_bytes(tensors: tuple[StateTensor, ...]) -> Bytes:
    return Bytes(sum(t.nbytes for t in tensors))


def _share(total: int, ranks: int, what: str) -> int:
    if total % ranks:
        raise ConfigurationError(
            f"{what} ({total}) can't be split over {ranks} tensor-parallel ranks",
            hint=f"use a --tensor-parallel-size that divides {total}",
        )
    return total // ranks


@dataclass(frozen=True)
class GatedDelta:
    """Gated DeltaNet: Qwen3-Next, Qwen3.5 and later, OLMo-hybrid."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int
    label: str = "Gated DeltaNet"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        width = 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
        rows = self.conv - 1 + drafts  # a draft that is rejected must be able to step the window back
        heads = _share(self.value_heads, ranks, "value heads")
        return (
            StateTensor("conv", (rows, _share(width, ranks, "convolution width")), dtypes.conv),
            StateTensor("recurrent", (heads, self.value_dim, self.key_dim), dtypes.recurrent),
        )


@dataclass(frozen=True)
class KimiDelta:
    """Kimi Delta Attention: Kimi-Linear, GLM-5.3-Flash."""

    heads: int
    head_dim: int
    conv: int
    label: str = "Kimi Delta Attention"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        width = 3 * self.heads * self.head_dim
        heads = _share(self.heads, ranks, "recurrent heads")
        return (
            StateTensor("conv", (self.conv - 1 + drafts, _share(width, ranks, "convolution width")), dtypes.conv),
            StateTensor("recurrent", (heads, self.head_dim, self.head_dim), dtypes.recurrent),
        )


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2: Granite-4-H, Nemotron-H, Falcon-H1, Bamba, Zamba2."""

    inner: int
    groups: int
    heads: int
    head_dim: int
    state: int
    conv: int
    label: str = "Mamba-2"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        # Groups that the ranks don't divide are repeated, so that each rank has the groups of its heads.
        groups = self.groups if self.groups % ranks == 0 else ranks
        width = self.inner + 2 * groups * self.state
        heads = _share(self.heads, ranks, "Mamba-2 heads")
        return (
            StateTensor("conv", (self.conv - 1 + drafts, _share(width, ranks, "convolution width")), dtypes.conv),
            StateTensor("recurrent", (heads, self.head_dim, self.state), dtypes.recurrent),
        )


@dataclass(frozen=True)
class Mamba1:
    """Mamba-1: Jamba."""

    inner: int
    state: int
    conv: int
    label: str = "Mamba-1"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        inner = _share(self.inner, ranks, "Mamba-1 inner size")
        return (
            StateTensor("conv", (self.conv - 1, inner), dtypes.conv),
            StateTensor("recurrent", (inner, self.state), dtypes.recurrent),
        )


@dataclass(frozen=True)
class ShortConv:
    """A short convolution: LFM2, and the per-layer embedding of Qwen4-Exp (which every rank holds whole)."""

    width: int
    conv: int
    replicated: bool = False
    label: str = "short convolution"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        width = self.width if self.replicated else _share(self.width, ranks, "convolution width")
        return (StateTensor("conv", (self.conv - 1 + drafts, width), dtypes.conv),)


@dataclass(frozen=True)
class LightningAttention:
    """Linear attention without a convolution: MiniMax-Text-01 and M1."""

    heads: int
    head_dim: int
    label: str = "lightning attention"

    def tensors(self, ranks: int, drafts: int, dtypes: StateDtypes) -> tuple[StateTensor, ...]:
        heads = _share(self.heads, ranks, "linear attention heads")
        return (StateTensor("recurrent", (heads, self.head_dim, self.head_dim), dtypes.conv),)
