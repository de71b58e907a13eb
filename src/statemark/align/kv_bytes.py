"""Bytes that one token's keys and values take in one attention layer on one rank, by KV-cache dtype.

The packings are those of vLLM 0.32's backends. Knows head counts and dtypes, not blocks.
"""

from __future__ import annotations

from statemark.align.shape import AttentionShape
from statemark.align.states import dtype_bytes
from statemark.align.units import Bytes
from statemark.errors import ConfigurationError

_PER_TOKEN_HEAD = {"int4_per_token_head": 4, "int8_per_token_head": 8, "fp8_per_token_head": 8}
# (bits of a key element, bits of a value element); 8-bit keys carry no norm.
_TURBOQUANT = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
_OPAQUE_LATENT = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_FP8_SCALES = 4  # one float32 scale for each of K and V of each head, in the per-token-head formats


def token_bytes(shape: AttentionShape, kv_dtype: str, model_dtype: str, ranks: int) -> Bytes:
    """Bytes per token, layer and rank."""
    if shape.latent:
        if kv_dtype in _OPAQUE_LATENT:
            return Bytes(_OPAQUE_LATENT[kv_dtype])
        return Bytes(shape.head_dim * _element(kv_dtype, model_dtype))
    heads = max(1, shape.kv_heads // ranks)  # heads that the ranks outnumber are repeated, never split
    return Bytes(heads * _head_bytes(shape, kv_dtype, model_dtype))


def _element(kv_dtype: str, model_dtype: str) -> int:
    if kv_dtype == "auto":
        return dtype_bytes(model_dtype)
    if kv_dtype in ("float16", "bfloat16"):
        return 2
    if kv_dtype.startswith("fp8"):
        return 1
    raise ConfigurationError(f"--kv-cache-dtype {kv_dtype} is not for latent (MLA) attention")


def _head_bytes(shape: AttentionShape, kv_dtype: str, model_dtype: str) -> int:
    keys, values = shape.head_dim, shape.value_width
    if kv_dtype in _PER_TOKEN_HEAD:
        packed = 2 if _PER_TOKEN_HEAD[kv_dtype] == 4 else 1
        return keys // packed + values // packed + 2 * _FP8_SCALES
    if kv_dtype in _TURBOQUANT:
        key_bits, value_bits = _TURBOQUANT[kv_dtype]
        slot = -(-keys * key_bits // 8) + (0 if key_bits == 8 else 2) + -(-keys * value_bits // 8) + 4
        return slot + slot % 2
    if kv_dtype in ("nvfp4", "nvfp4_4over6"):
        return 2 * (keys // 2 + keys // 16)
    if kv_dtype in ("ultraquant_4bit", *_OPAQUE_LATENT):
        raise ConfigurationError(
            f"--kv-cache-dtype {kv_dtype} is not modelled here for grouped-query attention",
            hint="read the block size from the server's log line 'Setting attention block size to ...'",
        )
    return (keys + values) * _element(kv_dtype, model_dtype)
