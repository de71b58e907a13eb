"""Gated DeltaNet families: Qwen3-Next, Qwen3.5 and later, Qwen4-Exp, OLMo-hybrid.

Defaults are those of the families' published config classes, for fields that a config.json may leave out.
"""

from __future__ import annotations

from statemark.align.families.common import context_length, count_layers, plain_attention
from statemark.align.fields import Fields
from statemark.align.shape import IndexerShape, ModelShape, RecurrentLayers, RingShape, StateDtypeRule
from statemark.align.states import GatedDelta, ShortConv
from statemark.align.units import KernelChunk

CHUNK = KernelChunk(64)  # the gated delta rule kernels take 64 tokens at a time, on CPUs and GPUs


def _gated_delta(text: Fields, key_heads: int, value_heads: int, key_dim: int, value_dim: int) -> GatedDelta:
    return GatedDelta(
        key_heads=text.integer("linear_num_key_heads", default=key_heads),
        value_heads=text.integer("linear_num_value_heads", default=value_heads),
        key_dim=text.integer("linear_key_head_dim", default=key_dim),
        value_dim=text.integer("linear_value_head_dim", default=value_dim),
        conv=text.integer("linear_conv_kernel_dim", default=4),
    )


def _layers(text: Fields) -> tuple[int, int]:
    return count_layers(text, text.strings("layer_types"), default_every=4)


def qwen3_next(config: Fields, text: Fields, architecture: str) -> ModelShape:
    attention, recurrent = _layers(text)
    return ModelShape(
        family="Qwen3-Next",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=plain_attention(text),
        attention_layers=attention,
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(_gated_delta(text, 16, 32, 128, 128), recurrent),),
        kernel_chunk=CHUNK,
        mtp_layers=text.integer("num_nextn_predict_layers", default=1),
    )


def qwen3_5(config: Fields, text: Fields, architecture: str) -> ModelShape:
    attention, recurrent = _layers(text)
    return ModelShape(
        family="Qwen3.5",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=plain_attention(text),
        attention_layers=attention,
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(_gated_delta(text, 16, 32, 128, 128), recurrent),),
        kernel_chunk=CHUNK,
        state_dtype_rule=StateDtypeRule.CONFIG,
        config_state_dtype=text.text("mamba_ssm_dtype"),
        mtp_layers=text.integer("mtp_num_hidden_layers", default=1),
        multimodal=config.has("vision_config"),
    )


def qwen4_exp(config: Fields, text: Fields, architecture: str) -> ModelShape:
    attention, recurrent = _layers(text)
    states = [RecurrentLayers(_gated_delta(text, 16, 32, 128, 128), recurrent)]
    # vLLM takes the largest state of the two kinds for its block, also where a model has no embedding layer.
    reach = (text.integer("ple_conv_kernel_size", default=4) - 1) * text.integer("ngram_size", default=3)
    width = text.integer("hidden_size") * text.integer("hc_count", default=4)
    embeddings = len(text.integers("ple_layer_ids") or [])
    states.append(RecurrentLayers(ShortConv(width, reach + 1, replicated=True), 1 if embeddings else 0))
    ring = indexer = None
    if text.has("indexer_n_heads"):
        pool = text.integer("indexer_compress_ratio", default=1)
        ring = RingShape("raw keys of the sparse-attention indexer", pool, power_of_two=False)
        indexer = IndexerShape(pool, attention)
    return ModelShape(
        family="Qwen4-Exp",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=plain_attention(text),
        attention_layers=attention,
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=tuple(states),
        kernel_chunk=CHUNK,
        state_dtype_rule=StateDtypeRule.CONFIG,
        config_state_dtype=text.text("mamba_ssm_dtype"),
        mtp_layers=text.integer("mtp_num_hidden_layers", default=1),
        ring=ring,
        indexer=indexer,
        multimodal=config.has("vision_config"),
    )


def olmo_hybrid(config: Fields, text: Fields, architecture: str) -> ModelShape:
    attention, recurrent = _layers(text)
    heads = text.integer("num_attention_heads")
    return ModelShape(
        family="OLMo-hybrid",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=plain_attention(text),
        attention_layers=attention,
        query_heads=heads,
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(_gated_delta(text, heads, heads, 96, 192), recurrent),),
        kernel_chunk=CHUNK,
    )
