"""The kernel API in plain NumPy: slow, short, and the meaning of every kernel.

Owns no speed and no layout tricks. It keeps the exactness rule: each row is computed alone, by operations whose
order depends on that row only, so whole-model tests may demand equal bits of it. Reductions run in float64 and
are rounded to float32 where the real kernels hold float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from statemark.errors import IntegrityError
from statemark.kernels.reference_quant import rounded_activations
from statemark.kernels.reference_state import (
    PAGE,
    PANEL,
    Arena,
    Attention,
    Batch,
    GatedDeltaNet,
    Matrix,
    bf16_bits,
    bf16_values,
    next_hash,
)

__all__ = [
    "PAGE",
    "PANEL",
    "Arena",
    "Attention",
    "Batch",
    "GatedDeltaNet",
    "Matrix",
    "Runtime",
    "available_isas",
    "bf16_bits",
    "bf16_values",
    "next_hash",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


def available_isas() -> list[str]:
    return ["reference"]


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
        if m.dtype == "int8" or m.dtype == "int4":
            x = rounded_activations(x, m.dtype)
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
        batch.check_arena(arena)
        for s, _, _, position in batch.spans():
            self._check_stamp(gdn, batch, arena, s, position)
        for s, row, end, position in batch.spans():
            count, rolling = position, int(batch.seq_hash[s])
            state_elems = gdn.value_heads * gdn.key_dim * gdn.value_dim
            here = slice(gdn.slot_offset, gdn.slot_offset + gdn.slot_floats)
            memory = (
                np.zeros(gdn.slot_floats, np.float32)
                if position == 0
                else arena.slot(int(batch.state_in[s]))[here].copy()
            )
            state = memory[:state_elems].reshape(gdn.value_heads, gdn.key_dim, gdn.value_dim)
            window_elems = (gdn.conv_width - 1) * gdn.conv_dim
            window = memory[state_elems : state_elems + window_elems].reshape(-1, gdn.conv_dim)
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
        batch.check_arena(arena)
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
