"""What the kernels mean, in float64 and in the plainest form: for error bounds, never for bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.kernels.inputs import F32, AttentionShape, GdnShape, bf16_bits, bf16_values

F64 = NDArray[np.float64]


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def gated_delta_net(shape: GdnShape, proj: F32) -> tuple[F64, F64]:
    """Outputs [T, out_cols] and the state [heads, key_dim, value_dim] of a sequence that starts fresh."""
    hk, hv, dk, dv = shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim
    c = {name: value.astype(np.float64) for name, value in shape.constants.items()}
    x = proj.astype(np.float64)
    raw = np.concatenate([np.zeros((shape.conv_width - 1, shape.conv_dim)), x[:, : shape.conv_dim]])
    state = np.zeros((hv, dk, dv))
    out = np.zeros((len(x), hv, dv))
    for t, row in enumerate(x):
        mixed = silu((raw[t : t + shape.conv_width] * c["conv_weight"].T).sum(axis=0))
        q, k = mixed[: 2 * hk * dk].reshape(2, hk, dk)
        q = np.repeat(q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dk), hv // hk, axis=0)
        k = np.repeat(k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6), hv // hk, axis=0)
        v = mixed[2 * hk * dk :].reshape(hv, dv)
        z = row[shape.conv_dim :][: hv * dv].reshape(hv, dv)
        b, a = row[shape.conv_dim + hv * dv :].reshape(2, hv)
        decay = np.exp(-np.exp(c["a_log"]) * np.logaddexp(0.0, a + c["dt_bias"]))
        state *= decay[:, None, None]
        delta = (v - np.einsum("hk,hkv->hv", k, state)) * sigmoid(b)[:, None]
        state += k[:, :, None] * delta[:, None, :]
        out[t] = rms_norm(np.einsum("hk,hkv->hv", q, state), c["norm_weight"], 1e-6) * silu(z)
    return out.reshape(len(x), hv * dv), state


def rope(x: F64, cos: F32, sin: F32) -> F64:
    """x [T, heads, D]; the first 2 * cos.shape[1] of D turn."""
    half = cos.shape[1]
    c, s = cos.astype(np.float64)[:, None], sin.astype(np.float64)[:, None]
    low, high = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([low * c - high * s, high * c + low * s, x[..., 2 * half :]], axis=-1)


def attention(shape: AttentionShape, proj: F32, cos: F32, sin: F32) -> F64:
    """Outputs of a sequence from position 0. Keys and values are rounded as the pages hold them."""
    hq, hk, d = shape.heads, shape.kv_heads, shape.head_dim
    c = {name: value.astype(np.float64) for name, value in shape.constants.items()}
    x = proj.astype(np.float64)
    queries = x[:, : 2 * hq * d].reshape(-1, hq, 2, d)
    keys, values = x[:, 2 * hq * d :].reshape(-1, 2, hk, d).transpose(1, 0, 2, 3)
    q = rope(rms_norm(queries[:, :, 0], c["q_norm"], 1e-6), cos, sin)
    k = rope(rms_norm(keys, c["k_norm"], 1e-6), cos, sin)
    if shape.kv_dtype == "bfloat16":
        k, values = (bf16_values(bf16_bits(part.astype(np.float32))).astype(np.float64) for part in (k, values))
    k, values = np.repeat(k, hq // hk, axis=1), np.repeat(values, hq // hk, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
    scores = np.where(np.tril(np.ones(scores.shape[1:], dtype=bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", weights / weights.sum(axis=-1, keepdims=True), values)
    return (mixed * sigmoid(queries[:, :, 1])).reshape(len(x), hq * d)
