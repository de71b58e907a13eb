"""Inputs from integer arithmetic (the same on every machine), batches, and layers in the sizes that tests use."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.kernels import PAGE, Arena, Attention, Batch, GatedDeltaNet, Matrix, Runtime, available_isas

F32 = NDArray[np.float32]
ISAS = available_isas()
HASH_STEP = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
WAITING = 7  # tokens that may wait beside a recurrent state


@cache
def runtime(isa: str, threads: int = 1) -> Runtime:
    return Runtime(threads=threads, isa=isa)


def bits(shape: tuple[int, ...], seed: int) -> NDArray[np.uint64]:
    """Well-mixed 64-bit words: the splitmix64 sequence from a seed."""
    with np.errstate(over="ignore"):
        z = (np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)) * np.uint64(HASH_STEP)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).reshape(shape)


def uniform(*shape: int, seed: int, scale: float = 1.0) -> F32:
    """Multiples of 2^-23 in [-1, 1), times a scale that should be a power of two to keep them exact."""
    whole = (bits(shape, seed) >> np.uint64(40)).astype(np.int64) - (1 << 23)
    return (whole.astype(np.float32) * np.float32(2.0**-23) * np.float32(scale)).astype(np.float32)


def bf16_bits(x: F32) -> NDArray[np.uint16]:
    """Round to nearest even, for finite values."""
    word = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16_values(words: NDArray[np.uint16]) -> F32:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def matrix(rows: int, cols: int, dtype: str, seed: int) -> Matrix:
    m = Matrix(rows, cols, dtype)
    assert m.fill(0, uniform(rows, cols, seed=seed)) == 0
    return m


def i32(*values: int) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def rolled(value: int, tokens: NDArray[np.int32]) -> int:
    """The rolling hash of a prefix after more tokens."""
    for token in tokens.tolist():
        value = (value * HASH_STEP + token + 1) & MASK
    return value


@dataclass
class Piece:
    """A run of consecutive tokens of one sequence in one batch."""

    position: int
    count: int
    state_in: int
    state_out: int
    hash: int = 0
    pages: tuple[int, ...] = ()
    marks: list[tuple[int, int]] = field(default_factory=list)  # (offset, slot)


def batch(pieces: list[Piece], tokens: NDArray[np.int32]) -> Batch:
    """`tokens`: all pieces' token ids, one after another."""
    starts = np.cumsum([0] + [p.count for p in pieces]).astype(np.int32)
    widest = max(-(-(p.position + p.count) // PAGE) for p in pieces)
    table = np.zeros((len(pieces), widest), dtype=np.int32)
    for row, p in zip(table, pieces, strict=True):
        needed = -(-(p.position + p.count) // PAGE)
        row[:needed] = p.pages[:needed] if p.pages else 0
    if not any(p.pages for p in pieces):  # a test without attention: give every position a page of its own
        table[:] = np.arange(table.size, dtype=np.int32).reshape(table.shape)
    marks = [(s, offset, slot) for s, p in enumerate(pieces) for offset, slot in p.marks]
    return Batch(
        tokens,
        starts,
        np.array([p.position for p in pieces], np.int32),
        np.array([p.hash for p in pieces], np.uint64),
        np.array([p.state_in for p in pieces], np.int32),
        np.array([p.state_out for p in pieces], np.int32),
        np.array(marks, np.int32).reshape(-1, 3),
        table,
    )


@dataclass(frozen=True)
class GdnShape:
    """Dimensions of a recurrent layer, with the constants that tests give it."""

    key_heads: int = 2
    value_heads: int = 4
    key_dim: int = 16
    value_dim: int = 40
    conv_width: int = 4
    index: int = 1
    slot_offset: int = 24

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def out_cols(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def proj_cols(self) -> int:
        return self.conv_dim + self.out_cols + 2 * self.value_heads

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "conv_weight": uniform(self.conv_dim, self.conv_width, seed=91),
            "a_log": uniform(self.value_heads, seed=92),
            "dt_bias": uniform(self.value_heads, seed=93),
            "norm_weight": uniform(self.value_dim, seed=94) + np.float32(1.0),
        }

    @property
    def layer(self) -> GatedDeltaNet:
        sizes = (self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.conv_width)
        return GatedDeltaNet(self.index, self.slot_offset, *sizes, 1e-6, **self.constants)

    @property
    def slot_floats(self) -> int:
        return self.slot_offset + self.layer.slot_floats

    @property
    def state_shape(self) -> tuple[int, int, int]:
        return self.value_heads, self.key_dim, self.value_dim

    def whole_state(self, held: F32) -> NDArray[np.float64]:
        """The state [value_heads, key_dim, value_dim] of a layer's part of a slot, with the tokens that wait in it."""
        wide, sizes = held.astype(np.float64), (self.key_heads, self.value_heads)
        ends = np.cumsum([np.prod(self.state_shape), (self.conv_width - 1) * self.conv_dim,
                          WAITING * self.key_heads * self.key_dim, WAITING * self.out_cols])  # fmt: skip
        state, _, keys, deltas, decays = np.split(wide, ends)
        state = state.reshape(self.state_shape)
        keys = np.repeat(keys.reshape(WAITING, self.key_heads, -1), sizes[1] // sizes[0], axis=1)
        deltas, decays = deltas.reshape(WAITING, self.value_heads, -1), decays.reshape(WAITING, self.value_heads)
        for key, delta, decay in zip(keys, deltas, decays, strict=True):
            if decay.any():  # a row of zeros is no token
                state = state * decay[:, None, None] + key[:, :, None] * delta[:, None, :]
        return state

    def arena(self, slots: int) -> Arena:
        return Arena(4096, 16, "float32", slots, self.slot_floats, self.index + 1)


@dataclass(frozen=True)
class AttentionShape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 24
    rotary_dim: int = 8
    kv_dtype: str = "bfloat16"
    page_offset: int = 32

    @property
    def out_cols(self) -> int:
        return self.heads * self.head_dim

    @property
    def proj_cols(self) -> int:
        return 2 * (self.heads + self.kv_heads) * self.head_dim

    @property
    def constants(self) -> dict[str, Any]:
        return {
            "q_norm": uniform(self.head_dim, seed=81) + np.float32(1.5),
            "k_norm": uniform(self.head_dim, seed=82) + np.float32(1.5),
        }

    @property
    def layer(self) -> Attention:
        return Attention(
            0, self.page_offset, self.heads, self.kv_heads, self.head_dim, self.rotary_dim, 1e-6, **self.constants
        )

    @property
    def page_elems(self) -> int:
        return self.page_offset + self.layer.page_elems

    def arena(self, pages: int) -> Arena:
        """Pages full of NaN: a kernel that lets a stale value in gives NaN."""
        arena = Arena(pages, self.page_elems, self.kv_dtype, 64, 8, 1)
        for i in range(pages):
            arena.page(i)[:] = 0x7FC0 if self.kv_dtype == "bfloat16" else np.nan
        return arena

    def tables(self, positions: NDArray[np.int32]) -> tuple[F32, F32]:
        half = max(self.rotary_dim // 2, 1)
        inv_freq = (10000.0 ** (-np.arange(self.rotary_dim // 2) / half)).astype(np.float32)
        return runtime(ISAS[0]).rope_tables(positions.astype(np.int32), inv_freq)
