"""The kernel API in plain NumPy: slow, short, and the meaning of every kernel.

Owns no speed and no layout tricks. It keeps the exactness rule: each row is computed alone, by operations whose
order depends on that row only, so whole-model tests may demand equal bits of it. Reductions run in float64 and
are rounded to float32 where the real kernels hold float32.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from statemark.errors import IntegrityError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
DType = Literal["bfloat16", "float32"]

PAGE = 16
PANEL = 32
_MASK64 = (1 << 64) - 1
_HASH_STEP = 0x9E3779B97F4A7C15


def available_isas() -> list[str]:
    return ["reference"]


def next_hash(value: int, token_id: int) -> int:
    """The rolling hash of a prefix after one more token."""
    return (value * _HASH_STEP + token_id + 1) & _MASK64


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

    def __init__(self, rows: int, cols: int, dtype: DType = "bfloat16") -> None:
        if rows < 1 or cols < 1:
            raise ValueError(f"a matrix needs at least one row and column, got {rows} x {cols}")
        if dtype not in ("bfloat16", "float32"):
            raise ValueError(f"dtype must be bfloat16 or float32, got {dtype!r}")
        self.rows, self.cols, self.dtype = rows, cols, dtype
        self._values: F32 = np.zeros((rows, cols), dtype=np.float32)
        self._wide: F64 | None = None

    @property
    def nbytes(self) -> int:
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
        self.marks = np.asarray(marks, dtype=np.int32).reshape(-1, 3)
        self.num_tokens, self.num_seqs = len(token_ids), len(seq_position)
        self._check()

    def _check(self) -> None:
        def need(ok: bool, what: str) -> None:
            if not ok:
                raise ValueError(what)

        s = self.num_seqs
        lengths = (len(self.seq_start) - 1, len(self.seq_hash), len(self.state_in), len(self.state_out))
        need(lengths == (s,) * 4 and len(self.page_table) == s, f"arrays disagree about {s} sequences: {lengths}")
        counts = np.diff(self.seq_start)
        need(bool(s == 0 or self.seq_start[0] == 0), "seq_start must begin at 0")
        need(bool(s == 0 or self.seq_start[-1] == self.num_tokens), f"seq_start must end at {self.num_tokens}")
        need(bool(np.all(counts >= 1)), "every sequence needs at least one token")
        need(bool(np.all(self.seq_position >= 0)), "positions must be at least 0")
        need(bool(np.all((self.seq_position == 0) == (self.state_in == -1))), "state_in is -1 exactly at position 0")
        need(bool(np.all(self.state_out >= 0)), "state_out must be a slot")
        pages = -(-(self.seq_position + counts) // PAGE)
        need(bool(np.all(pages <= self.page_table.shape[1])), "page_table is narrower than the longest sequence")
        for i in range(s):
            need(bool(np.all(self.page_table[i, : pages[i]] >= 0)), f"sequence {i} lacks a page")
        order = [(int(q), int(o)) for q, o, _ in self.marks]
        need(order == sorted(order), "marks must be sorted by (sequence, offset)")
        for q, offset, slot in self.marks:
            need(0 <= q < s and 1 <= offset <= counts[q] and slot >= 0, f"mark ({q}, {offset}, {slot}) is out of range")

    def spans(self) -> list[tuple[int, int, int, int]]:
        """(sequence, first row, end row, position of the first row)."""
        starts = self.seq_start.tolist()
        return [(s, starts[s], starts[s + 1], int(self.seq_position[s])) for s in range(self.num_seqs)]


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
        if value_heads % key_heads or conv_weight.shape != (self.conv_dim, conv_width):
            raise ValueError(f"{key_heads} key heads, {value_heads} value heads, conv weight {conv_weight.shape}")


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
        if heads % kv_heads or rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"{heads} heads, {kv_heads} kv heads, rotary {rotary_dim} of {head_dim}")


def _sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _silu(x: F64) -> F64:
    return x * _sigmoid(x)


def _unit_rms(x: F64, eps: float) -> F64:
    unit: F64 = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return unit


class Runtime:
    def __init__(self, threads: int = 0, isa: str | None = None) -> None:
        self.threads = threads or 1
        self.isa = isa or "reference"

    def linear(self, x: F32, m: Matrix, out: F32, bias: F32 | None = None, accumulate: bool = False) -> None:
        weights = m.wide()
        for row in range(len(x)):  # one matrix-vector product a row: a row cannot depend on its mates
            y = weights @ x[row, : m.cols].astype(np.float64)
            if bias is not None:
                y += bias
            out[row] = out[row] + y.astype(np.float32) if accumulate else y

    def embed(self, ids: I32, m: Matrix, out: F32) -> None:
        if len(ids) and (ids.min() < 0 or ids.max() >= m.rows):
            raise ValueError(f"token ids must be in [0, {m.rows})")
        out[:] = m.to_float32()[ids]

    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None:
        out[:] = _unit_rms(x.astype(np.float64), eps) * weight

    def swiglu(self, gate_up: F32, out: F32) -> None:
        gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
        out[:] = _silu(gate) * up

    def rope_tables(self, positions: I32, inv_freq: F32) -> tuple[F32, F32]:
        angle = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
        return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)

    def argmax(self, logits: F32) -> I32:
        best: I32 = np.argmax(logits, axis=1).astype(np.int32)
        return best

    def top_logprobs(self, logits: F32, n: int, targets: I32) -> tuple[I32, F32, F32, I32]:
        wide = logits.astype(np.float64)
        peak = wide.max(axis=1, keepdims=True)
        lse = peak + np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))
        logprobs = (wide - lse).astype(np.float32)
        top = np.argsort(-wide, axis=1, kind="stable")[:, :n].astype(np.int32)
        rows = np.arange(len(logits))
        chosen = wide[rows, targets][:, None]
        lower_tie = (wide == chosen) & (np.arange(wide.shape[1]) < targets[:, None])
        rank = 1 + ((wide > chosen) | lower_tie).sum(axis=1)
        return top, np.take_along_axis(logprobs, top, axis=1), logprobs[rows, targets], rank.astype(np.int32)

    def gated_delta_net(self, gdn: GatedDeltaNet, proj: F32, batch: Batch, arena: Arena, out: F32) -> None:
        # Checked for all sequences first, so that a fault leaves nothing half written.
        for s, _, _, position in batch.spans():
            self._check_stamp(gdn, batch, arena, s, position)
        for s, row, end, position in batch.spans():
            count, rolling = position, int(batch.seq_hash[s])
            state_elems = gdn.value_heads * gdn.key_dim * gdn.value_dim
            size = state_elems + (gdn.conv_width - 1) * gdn.conv_dim
            here = slice(gdn.slot_offset, gdn.slot_offset + size)
            memory = np.zeros(size, np.float32) if position == 0 else arena.slot(int(batch.state_in[s]))[here].copy()
            state = memory[:state_elems].reshape(gdn.value_heads, gdn.key_dim, gdn.value_dim)
            window = memory[state_elems:].reshape(gdn.conv_width - 1, gdn.conv_dim)
            keep = [(int(offset), int(slot)) for q, offset, slot in batch.marks if q == s]
            keep.append((end - row, int(batch.state_out[s])))
            for t in range(row, end):
                out[t] = self._gdn_token(gdn, proj[t], state, window)
                count, rolling = count + 1, next_hash(rolling, int(batch.token_ids[t]))
                for offset, slot in keep:
                    if offset == t - row + 1:
                        arena.slot(slot)[here] = memory
                        arena.stamps[slot, gdn.index] = np.array([count, rolling], dtype=np.uint64)

    @staticmethod
    def _check_stamp(gdn: GatedDeltaNet, batch: Batch, arena: Arena, s: int, position: int) -> None:
        if position == 0 or not arena.check_stamps:
            return
        slot = int(batch.state_in[s])
        stamp = tuple(int(v) for v in arena.stamps[slot, gdn.index])
        expected = (position, int(batch.seq_hash[s]))
        if stamp != expected:
            raise IntegrityError(
                f"sequence {s}, recurrent layer {gdn.index}: slot {slot} has consumed (tokens, hash) {stamp}, "
                f"but this step continues from {expected}"
            )

    @staticmethod
    def _gdn_token(gdn: GatedDeltaNet, proj: F32, state: F32, window: F32) -> F64:
        """One token: reads a row of projections, updates `state` and `window` in place, returns the gated output."""
        hk, hv, dk, dv = gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim
        ends = np.cumsum([gdn.conv_dim, hv * dv, hv, hv])
        _, z, b, a = np.split(proj[: ends[-1]].astype(np.float64), ends[:-1])
        taps = np.concatenate([window, proj[None, : gdn.conv_dim]])
        window[:] = taps[1:]
        convolved = _silu(np.einsum("wc,cw->c", taps.astype(np.float64), gdn.conv_weight.astype(np.float64)))
        q, k, v = np.split(convolved, [hk * dk, 2 * hk * dk])

        def unit(x: F64) -> F64:
            heads = x.reshape(hk, dk)
            heads = heads / np.sqrt((heads * heads).sum(axis=1, keepdims=True) + 1e-6)
            return np.repeat(heads, hv // hk, axis=0)  # consecutive value heads share a key head

        q, k, v = unit(q) * dk**-0.5, unit(k), v.reshape(hv, dv)
        beta = _sigmoid(b)[:, None]
        decay = np.exp(-np.exp(gdn.a_log.astype(np.float64)) * np.logaddexp(0.0, a + gdn.dt_bias))
        decayed = state * decay[:, None, None]
        delta = (v - np.einsum("hk,hkv->hv", k, decayed)) * beta
        state[:] = decayed + k[:, :, None] * delta[:, None, :]
        read = np.einsum("hk,hkv->hv", q, state.astype(np.float64))
        return (_unit_rms(read, gdn.eps) * gdn.norm_weight * _silu(z.reshape(hv, dv))).reshape(-1)

    def attention(self, att: Attention, proj: F32, cos: F32, sin: F32, batch: Batch, arena: Arena, out: F32) -> None:
        heads, kv, d = att.heads, att.kv_heads, att.head_dim
        q_gate = proj[:, : 2 * heads * d].astype(np.float64).reshape(-1, heads, 2, d)
        keys, values = (
            proj[:, (2 * heads + i * kv) * d : (2 * heads + (i + 1) * kv) * d].reshape(-1, kv, d) for i in (0, 1)
        )
        q = self._rope(_unit_rms(q_gate[:, :, 0], att.eps) * att.q_norm, cos, sin, att.rotary_dim)
        k = self._rope(_unit_rms(keys.astype(np.float64), att.eps) * att.k_norm, cos, sin, att.rotary_dim)
        gate = _sigmoid(q_gate[:, :, 1])
        for s, row, end, position in batch.spans():
            table = batch.page_table[s]
            for t in range(row, end):
                self._store(
                    att, arena, int(table[(position + t - row) // PAGE]), (position + t - row) % PAGE, k[t], values[t]
                )
            length = position + end - row
            all_k, all_v = self._gather(att, arena, table[: -(-length // PAGE)])
            for t in range(row, end):
                seen = position + t - row + 1
                grouped = q[t].reshape(kv, heads // kv, d)
                scores = grouped @ all_k[:, :, :seen] * d**-0.5
                weights = np.exp(scores - scores.max(axis=2, keepdims=True))
                mixed = (weights @ all_v[:, :seen]) / weights.sum(axis=2, keepdims=True)
                out[t] = (mixed.reshape(heads, d) * gate[t]).reshape(-1)

    @staticmethod
    def _rope(x: F64, cos: F32, sin: F32, rotary: int) -> F64:
        half = rotary // 2
        c, s = cos[:, None, :].astype(np.float64), sin[:, None, :].astype(np.float64)
        low, high = x[..., :half], x[..., half:rotary]
        return np.concatenate([low * c - high * s, high * c + low * s, x[..., rotary:]], axis=-1)

    @staticmethod
    def _store(att: Attention, arena: Arena, page: int, column: int, k: F64, v: F32) -> None:
        d = att.head_dim
        block = arena.kv_block(page, att.page_offset, (att.kv_heads, 2, d * PAGE))
        block[:, 0].reshape(att.kv_heads, d, PAGE)[:, :, column] = arena.to_kv(k.astype(np.float32))
        block[:, 1].reshape(att.kv_heads, PAGE, d)[:, column] = arena.to_kv(v)

    @staticmethod
    def _gather(att: Attention, arena: Arena, pages: I32) -> tuple[F64, F64]:
        """Keys [kv, D, L] and values [kv, L, D] of whole pages."""
        d, kv = att.head_dim, att.kv_heads
        blocks = [arena.load(int(p), att.page_offset, (kv, 2, d * PAGE)) for p in pages]
        keys = np.concatenate([b[:, 0].reshape(kv, d, PAGE) for b in blocks], axis=2)
        values = np.concatenate([b[:, 1].reshape(kv, PAGE, d) for b in blocks], axis=1)
        return keys.astype(np.float64), values.astype(np.float64)
