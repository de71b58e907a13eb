"""Which matrices a quantised model packs in which type, and what can't be combined. Rounds nothing itself.

int8 packs all of them in int8. int4 keeps int8 where 4 bits cost most for what they save: the embedding, which is the
head of a tied model, the head, and the projection out of recurrent layers (docs/quantization.md has the figures).
"""

from __future__ import annotations

from statemark.errors import ConfigurationError

QUANTIZATIONS = ("int8", "int4")

_KEEP_INT8 = ("embed_tokens.weight", "lm_head.weight", "linear_attn.out_proj.weight")


def check_quantization(quantization: str | None, dtype: str) -> None:
    """Refuse an unknown kind, and a dtype beside it: the quantised type is the dtype of the weights."""
    if quantization is None:
        return
    if quantization not in QUANTIZATIONS:
        raise ConfigurationError(f"quantization must be one of {', '.join(QUANTIZATIONS)}, got {quantization!r}")
    if dtype == "float32":
        raise ConfigurationError(
            f"dtype float32 and quantization {quantization} exclude each other: weights have one type",
            hint="leave one of them out; keys and values of a quantised model are bfloat16",
        )


def packing_of(name: str, quantization: str) -> str:
    """The type of a tensor's matrix."""
    return "int8" if quantization == "int8" or name.endswith(_KEEP_INT8) else "int4"
