"""Families with a recurrence of their own: LFM2 (short convolutions), MiniMax-Text-01 and M1 (lightning attention)."""

from __future__ import annotations

from statemark.align.families.common import context_length, count_layers, plain_attention
from statemark.align.fields import Fields
from statemark.align.shape import ModelShape, RecurrentLayers
from statemark.align.states import LightningAttention, ShortConv
from statemark.align.units import KernelChunk


def lfm2(config: Fields, text: Fields, architecture: str) -> ModelShape:
    names = text.strings("layer_types")
    if names is None and text.has("full_attn_idxs"):
        attention = len(text.integers("full_attn_idxs") or [])
        counts = (attention, text.integer("num_hidden_layers") - attention)
    else:
        counts = count_layers(text, names)
    width = text.integer("conv_dim", default=text.integer("hidden_size"))
    return ModelShape(
        family="LFM2",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=plain_attention(text),
        attention_layers=counts[0],
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(ShortConv(width, text.integer("conv_L_cache", default=3)), counts[1]),),
        kernel_chunk=KernelChunk(1),  # a convolution has no chunked arithmetic: any cut leaves it as it was
        multimodal=config.has("vision_config"),
    )


def minimax(config: Fields, text: Fields, architecture: str) -> ModelShape:
    flags = text.integers("attn_type_list")
    if flags is not None:  # the checkpoint's own code: 0 is lightning attention, 1 is softmax attention
        counts = (sum(flags), len(flags) - sum(flags))
    else:
        counts = count_layers(text, text.strings("layer_types"))
    attention = plain_attention(text)
    heads = text.integer("num_attention_heads")
    return ModelShape(
        family="MiniMax",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=attention,
        attention_layers=counts[0],
        query_heads=heads,
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(LightningAttention(heads, attention.head_dim), counts[1]),),
        kernel_chunk=KernelChunk(text.integer("block_size", default=256)),
        gone_since="0.23",
    )
