"""What a model's config says about its caches, before any flag: attention layers, recurrent layers, rings.

Written by the family readers, read by the geometry. Knows no serve flags and no backends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from statemark.align.states import StateKind
from statemark.align.units import KernelChunk


class StateDtypeRule(Enum):
    """Where the recurrent matrix's dtype comes from when `--mamba-ssm-cache-dtype` is absent."""

    FOLLOW = "that of the convolution window"
    CONFIG = "the model's config, else that of the convolution window"
    CONFIG_OR_FLOAT32 = "the model's config, else float32"
    FLOAT32 = "float32"


class Checkpointing(Enum):
    """Whether the recurrent kernel can export a state from inside the last prefill chunk."""

    NEVER = "never"
    ANY_POSITION = "at any position"
    FLASH_KDA = "on multiples of 16, with FlashKDA"


@dataclass(frozen=True)
class AttentionShape:
    """One attention layer's keys and values. `latent` is MLA: one latent row a token, the same on every rank."""

    kv_heads: int
    head_dim: int
    value_dim: int | None = None
    latent: bool = False
    window: int | None = None

    @property
    def value_width(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim


@dataclass(frozen=True)
class RingShape:
    """A per-request ring of raw keys that grows with the draft depth. Never shared, but part of the common multiple."""

    label: str
    step: int
    power_of_two: bool

    def block(self, drafts: int) -> int:
        pools = -(-(self.step + drafts) // self.step)
        if self.power_of_two:
            pools = 1 << (pools - 1).bit_length()
        return self.step * pools


@dataclass(frozen=True)
class RecurrentLayers:
    """All recurrent layers of one kind."""

    kind: StateKind
    layers: int


@dataclass(frozen=True)
class IndexerShape:
    """The sparse-attention indexer beside the attention layers: one compressed key per `pool` tokens."""

    pool: int
    layers: int
    kernel_states: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Everything that the geometry needs of one model."""

    family: str
    architecture: str
    dtype: str
    max_model_len: int
    attention: AttentionShape
    attention_layers: int
    query_heads: int
    hidden_size: int
    recurrent: tuple[RecurrentLayers, ...]
    kernel_chunk: KernelChunk
    state_dtype_rule: StateDtypeRule = StateDtypeRule.FOLLOW
    config_state_dtype: str | None = None
    checkpointing: Checkpointing = Checkpointing.NEVER
    mtp_layers: int = 0
    ring: RingShape | None = None
    indexer: IndexerShape | None = None
    multimodal: bool = False
    gone_since: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def recurrent_layers(self) -> int:
        return sum(r.layers for r in self.recurrent)
