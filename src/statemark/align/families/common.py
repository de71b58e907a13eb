"""What all family readers share: the attention part of a config, layer lists, context length.

Knows field names that every family uses, and no family's own.
"""

from __future__ import annotations

from statemark.align.fields import Fields
from statemark.align.shape import AttentionShape
from statemark.errors import CheckpointError

# Names that one list of layer kinds has had over the years; the newer ones are those of current transformers.
ATTENTION_NAMES = frozenset({"attention", "full_attention", "indexed_attention"})
RECURRENT_NAMES = frozenset({"mamba", "mamba2", "linear_attention", "conv", "hybrid"})


def plain_attention(text: Fields) -> AttentionShape:
    """Grouped-query attention with one head size for keys and values."""
    heads = text.integer("num_attention_heads")
    if text.has("head_dim") and text.integer("head_dim") > 0:
        head_dim = text.integer("head_dim")
    else:
        head_dim = text.integer("hidden_size") // max(heads, 1)
    return AttentionShape(
        kv_heads=text.integer("num_key_value_heads", "num_kv_heads", default=heads), head_dim=head_dim
    )


def latent_attention(text: Fields, default_rope: int) -> AttentionShape:
    """MLA: one latent row and its rotary part a token, whatever the number of heads."""
    width = text.integer("kv_lora_rank") + text.integer("qk_rope_head_dim", default=default_rope)
    return AttentionShape(kv_heads=1, head_dim=width, value_dim=0, latent=True)


def context_length(text: Fields) -> int:
    """What `--max-model-len` is when it's absent."""
    return text.integer(
        "max_position_embeddings", "model_max_length", "seq_length", "max_sequence_length", default=2048
    )


def count_layers(text: Fields, names: list[str] | None, default_every: int | None = None) -> tuple[int, int]:
    """(attention layers, recurrent layers) from a list of layer kinds, or from "attention in every n-th layer"."""
    if names is None:
        layers = text.integer("num_hidden_layers")
        if default_every is None:
            raise CheckpointError(f"{text.where}: layer_types is missing")
        every = text.integer("full_attention_interval", default=default_every)
        return layers // every, layers - layers // every
    unknown = sorted(set(names) - ATTENTION_NAMES - RECURRENT_NAMES - {"moe", "mlp", "dense", "sparse"})
    if unknown:
        raise CheckpointError(f"{text.where}: unknown kinds of layer: {', '.join(unknown)}")
    return sum(n in ATTENTION_NAMES for n in names), sum(n in RECURRENT_NAMES for n in names)
