"""What the reference kernels work on: matrices, the arena and its stamps, batches, descriptions of layers.

Plain NumPy versions of the compiled classes, with the same names and the same checks. Owns no arithmetic but rounding.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statemark.kernels.reference_quant import DEPTH, GROUP_BYTES, quantised_values

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
DType = Literal["bfloat16", "float32"]
Packing = Literal["bfloat16", "float32", "int8", "int4"]

PAGE = 16
WAITING = 7  # tokens of a Gated DeltaNet that may wait beside a state (csrc/delta.inl); here all enter at once
PANEL = 32
_MASK64 = (1 << 64) - 1
_HASH_STEP = 0x9E3779B97F4A7C15


def next_hash(value: int, token_id: int) -> int:
    """The rolling hash of a prefix after one more token."""
    return (value * _HASH_STEP + token_id + 1) & _MASK64


def _need(ok: bool, what: str) -> None:
    if not ok:
        raise ValueError(what)


def bf16_bits(x: ArrayLike) -> NDArray[np.uint16]:
    """float32 to bfloat16 bits, round to nearest even; NaN stays NaN."""
    values = np.ascontiguousarray(x, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> F32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Matrix:
    """Weights [rows, cols], held as the float32 values that the chosen dtype can represent."""

    def __init__(
        self, rows: int, cols: int, dtype: Packing = "bfloat16", packed: NDArray[np.uint8] | None = None
    ) -> None:
        if packed is not None:
            raise ValueError("the reference kernels don't read packed weights")
        if rows < 1 or cols < 1:
            raise ValueError(f"a matrix needs at least one row and column, got {rows} x {cols}")
        if dtype not in ("bfloat16", "float32", "int8", "int4"):
            raise ValueError(f"dtype must be bfloat16, float32, int8 or int4, got {dtype!r}")
        self.rows, self.cols, self.dtype = rows, cols, dtype
        self._values: F32 = np.zeros((rows, cols), dtype=np.float32)
        self._wide: F64 | None = None

    @property
    def nbytes(self) -> int:
        if self.dtype in DEPTH:
            return -(-self.rows // PANEL) * -(-self.cols // DEPTH[self.dtype]) * GROUP_BYTES[self.dtype]
        padded = -(-self.rows // PANEL) * PANEL * (self.cols + self.cols % 2)
        return padded * (2 if self.dtype == "bfloat16" else 4)

    def fill(self, row: int, w: NDArray[np.generic]) -> int:
        if w.ndim != 2 or w.shape[1] != self.cols or row < 0 or row + w.shape[0] > self.rows:
            raise ValueError(f"rows {row}.. of shape {w.shape} do not fit a {self.rows} x {self.cols} matrix")
        if w.dtype == np.uint16:
            values = bf16_values(w.astype(np.uint16))
        elif w.dtype in (np.float32, np.float16):
            values = w.astype(np.float32)
        else:
            raise TypeError(f"weights must be float32, float16 or uint16 (bfloat16 bits), got {w.dtype}")
        bad = int(np.count_nonzero(~np.isfinite(values)))
        if self.dtype == "bfloat16":
            values = bf16_values(bf16_bits(values))
        elif self.dtype != "float32":
            values = quantised_values(values, self.dtype)
        self._values[row : row + w.shape[0]] = values
        self._wide = None
        return bad

    def to_float32(self) -> F32:
        return self._values.copy()

    def wide(self) -> F64:
        if self._wide is None:
            self._wide = self._values.astype(np.float64)
        return self._wide


class Arena:
    """Pages of keys and values, slots of recurrent state, and the stamps that say what each slot has consumed."""

    def __init__(
        self, num_pages: int, page_elems: int, kv_dtype: DType, num_slots: int, slot_floats: int, num_stamps: int
    ) -> None:
        self.num_pages, self.page_elems, self.kv_dtype = num_pages, page_elems, kv_dtype
        self.num_slots, self.slot_floats, self.num_stamps = num_slots, slot_floats, num_stamps
        kind = np.uint16 if kv_dtype == "bfloat16" else np.float32
        self._pages: NDArray[np.generic] = np.zeros((num_pages, page_elems), dtype=kind)
        self._slots: F32 = np.zeros((num_slots, slot_floats), dtype=np.float32)
        self.stamps: U64 = np.zeros((num_slots, num_stamps, 2), dtype=np.uint64)
        self.check_stamps = True

    def page(self, i: int) -> NDArray[np.generic]:
        page: NDArray[np.generic] = self._pages[i]
        return page

    def slot(self, i: int) -> F32:
        slot: F32 = self._slots[i]
        return slot

    def release_page(self, i: int) -> None:
        self._pages[i] = 0

    def release_slot(self, i: int) -> None:
        self._slots[i] = 0
        self.stamps[i] = 0

    def copy_page(self, src: int, dst: int) -> None:
        self._pages[dst] = self._pages[src]

    def copy_slot(self, src: int, dst: int) -> None:
        self._slots[dst] = self._slots[src]
        self.stamps[dst] = self.stamps[src]

    def load(self, page: int, start: int, shape: tuple[int, ...]) -> F32:
        raw = self._pages[page, start : start + int(np.prod(shape))].reshape(shape)
        return bf16_values(raw.astype(np.uint16)) if self.kv_dtype == "bfloat16" else raw.astype(np.float32)

    def kv_block(self, page: int, start: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
        return self._pages[page, start : start + int(np.prod(shape))].reshape(shape)

    def to_kv(self, x: F32) -> NDArray[np.generic]:
        return bf16_bits(x) if self.kv_dtype == "bfloat16" else x


class Batch:
    """A flat token batch. Sequence s owns tokens [seq_start[s], seq_start[s + 1])."""

    def __init__(
        self,
        token_ids: I32,
        seq_start: I32,
        seq_position: I32,
        seq_hash: U64,
        state_in: I32,
        state_out: I32,
        marks: I32,
        page_table: I32,
    ) -> None:
        self.token_ids, self.seq_start, self.seq_position, self.seq_hash = token_ids, seq_start, seq_position, seq_hash
        self.state_in, self.state_out, self.page_table = state_in, state_out, page_table
        self.marks: I32 = np.asarray(marks, dtype=np.int32).reshape(-1, 3)
        self.num_tokens, self.num_seqs = len(token_ids), len(seq_position)
        self._check_sequences()
        self._check_marks()
        self._check_writers()
        self.end_hash: list[int] = []
        self.mark_hash: list[int] = []
        self._hash_tokens()

    def spans(self) -> list[tuple[int, int, int, int]]:
        """(sequence, first row, end row, position of the first row)."""
        starts = self.seq_start.tolist()
        return [(s, starts[s], starts[s + 1], int(self.seq_position[s])) for s in range(self.num_seqs)]

    def check_arena(self, arena: Arena) -> None:
        slots = max([*self.state_in.tolist(), *self.state_out.tolist(), *self.marks[:, 2].tolist()], default=-1)
        _need(slots < arena.num_slots, f"slot {slots} is out of range: the arena has {arena.num_slots}")
        pages = max((int(p) for s, *_ in self.spans() for p in self._pages(s)), default=-1)
        _need(pages < arena.num_pages, f"page {pages} is out of range: the arena has {arena.num_pages}")

    def _pages(self, s: int) -> I32:
        """Pages of all positions up to the end of this step."""
        end = int(self.seq_position[s]) + int(self.seq_start[s + 1]) - int(self.seq_start[s])
        pages: I32 = self.page_table[s, : -(-end // PAGE)]
        return pages

    def _check_sequences(self) -> None:
        s = self.num_seqs
        lengths = (len(self.seq_start) - 1, len(self.seq_hash), len(self.state_in), len(self.state_out))
        _need(lengths == (s,) * 4 and len(self.page_table) == s, f"arrays disagree about {s} sequences: {lengths}")
        ends = (int(self.seq_start[0]), int(self.seq_start[-1]))
        _need(ends == (0, self.num_tokens), f"seq_start must go from 0 to {self.num_tokens}, goes from {ends}")
        _need(bool(np.all(self.token_ids >= 0)), "token ids can't be negative")
        counts = np.diff(self.seq_start)
        _need(bool(np.all(counts >= 1)), "every sequence needs at least one token")
        _need(bool(np.all(self.seq_position >= 0)), "positions must be at least 0")
        _need(bool(np.all((self.seq_position == 0) == (self.state_in == -1))), "state_in is -1 exactly at position 0")
        _need(bool(np.all(self.state_out >= 0)), "state_out must be a slot")
        pages = -(-(self.seq_position + counts) // PAGE)
        _need(bool(np.all(pages <= self.page_table.shape[1])), "page_table is narrower than the longest sequence")
        for i in range(s):
            _need(bool(np.all(self.page_table[i, : pages[i]] >= 0)), f"sequence {i} has a gap in its pages")

    def _check_marks(self) -> None:
        order = [(int(s), int(offset)) for s, offset, _ in self.marks]
        _need(order == sorted(order), "marks must be sorted by (sequence, offset)")
        for s, offset, slot in self.marks:
            inside = 0 <= s < self.num_seqs and 1 <= offset <= self.seq_start[s + 1] - self.seq_start[s] and slot >= 0
            _need(bool(inside), f"mark ({s}, {offset}, {slot}) is out of range")

    def _check_writers(self) -> None:
        """What one sequence writes, no other may read or write in the same step."""
        slots = [
            *((int(slot), s) for s, slot in enumerate(self.state_out)),
            *((int(m[2]), int(m[0])) for m in self.marks),
        ]
        _need(len({slot for slot, _ in slots}) == len(slots), "a slot is written twice")
        written = dict(slots)
        for s, slot in enumerate(self.state_in.tolist()):
            _need(slot not in written or slot == self.state_out[s], f"slot {slot} is read and written")
        fresh = [int(p) for s, _, _, position in self.spans() for p in self._pages(s)[position // PAGE :]]
        _need(len(set(fresh)) == len(fresh), "a page is written twice")
        old = {int(p) for s, _, _, position in self.spans() for p in self._pages(s)[: position // PAGE]}
        _need(not old & set(fresh), "a page is read by one sequence and written by another")

    def _hash_tokens(self) -> None:
        for s, row, end, _ in self.spans():
            rolling = int(self.seq_hash[s])
            for offset, token in enumerate(self.token_ids[row:end].tolist(), 1):
                rolling = next_hash(rolling, token)
                self.mark_hash += [rolling for sequence, at, _ in self.marks if (sequence, at) == (s, offset)]
            self.end_hash.append(rolling)


class GatedDeltaNet:
    """One recurrent layer: its dimensions, its small weights, its place in a slot."""

    def __init__(
        self,
        index: int,
        slot_offset: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_width: int,
        eps: float,
        conv_weight: F32,
        a_log: F32,
        dt_bias: F32,
        norm_weight: F32,
    ) -> None:
        self.index, self.slot_offset, self.eps, self.conv_width = index, slot_offset, eps, conv_width
        self.key_heads, self.value_heads, self.key_dim, self.value_dim = key_heads, value_heads, key_dim, value_dim
        self.conv_weight, self.a_log, self.dt_bias, self.norm_weight = conv_weight, a_log, dt_bias, norm_weight
        self.conv_dim = 2 * key_heads * key_dim + value_heads * value_dim
        waiting = WAITING * (key_heads * key_dim + value_heads * (value_dim + 1))
        self.slot_floats = value_heads * key_dim * value_dim + (conv_width - 1) * self.conv_dim + waiting
        _need(value_heads % key_heads == 0, f"value_heads {value_heads} is no multiple of key_heads {key_heads}")
        _need(key_dim % 8 == 0 and value_dim % 8 == 0, f"dims must be multiples of 8, got {key_dim} and {value_dim}")
        _need(conv_weight.shape == (self.conv_dim, conv_width), f"conv_weight has shape {conv_weight.shape}")
        _need(1 <= conv_width <= 16, f"conv_width must be 1 to 16, got {conv_width}")


class Attention:
    """One attention layer: its dimensions, its small weights, its place in a page."""

    def __init__(
        self,
        index: int,
        page_offset: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        eps: float,
        q_norm: F32,
        k_norm: F32,
    ) -> None:
        self.index, self.page_offset, self.eps = index, page_offset, eps
        self.heads, self.kv_heads, self.head_dim, self.rotary_dim = heads, kv_heads, head_dim, rotary_dim
        self.q_norm, self.k_norm = q_norm, k_norm
        self.page_elems = 2 * kv_heads * head_dim * PAGE
        _need(heads % kv_heads == 0, f"heads {heads} is no multiple of kv_heads {kv_heads}")
        _need(head_dim % 8 == 0, f"head_dim must be a multiple of 8, got {head_dim}")
        _need(rotary_dim % 2 == 0 and rotary_dim <= head_dim, f"rotary_dim {rotary_dim} of head_dim {head_dim}")
