"""Kimi Delta Attention families: Kimi-Linear and GLM-5.3-Flash, both beside latent attention."""

from __future__ import annotations

from statemark.align.families.common import context_length, count_layers, latent_attention, plain_attention
from statemark.align.fields import Fields
from statemark.align.shape import (
    Checkpointing,
    IndexerShape,
    ModelShape,
    RecurrentLayers,
    RingShape,
    StateDtypeRule,
)
from statemark.align.states import KimiDelta
from statemark.align.units import KernelChunk
from statemark.errors import CheckpointError

CHUNK = KernelChunk(64)


def kimi_linear(config: Fields, text: Fields, architecture: str) -> ModelShape:
    linear = text.part("linear_attn_config")
    if linear is not None:
        recurrent = len(linear.integers("kda_layers") or [])
        attention = text.integer("num_hidden_layers") - recurrent
        kind = KimiDelta(
            heads=linear.integer("num_heads"),
            head_dim=linear.integer("head_dim"),
            conv=linear.integer("short_conv_kernel_size", default=4),
        )
    else:
        attention, recurrent = count_layers(text, text.strings("layer_types"))
        kind = KimiDelta(
            heads=text.integer("linear_num_heads"),
            head_dim=text.integer("linear_head_dim"),
            conv=text.integer("linear_conv_kernel_dim", default=4),
        )
    if recurrent == 0:
        raise CheckpointError(f"{text.where}: no layer is a Kimi Delta Attention layer")
    return ModelShape(
        family="Kimi-Linear",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=latent_attention(text, 64) if text.has("kv_lora_rank") else plain_attention(text),
        attention_layers=attention,
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(kind, recurrent),),
        kernel_chunk=CHUNK,
        state_dtype_rule=StateDtypeRule.FLOAT32,
        checkpointing=Checkpointing.FLASH_KDA,
        mtp_layers=text.integer("num_nextn_predict_layers", default=0),
        multimodal=config.has("vision_config"),
    )


def glm5_next(config: Fields, text: Fields, architecture: str) -> ModelShape:
    names = text.strings("layer_types")
    attention, recurrent = count_layers(text, names, default_every=4)
    ring = indexer = None
    if text.has("index_kpool"):
        pool = text.integer("index_kpool")
        ring = RingShape("unfinished pool of the sparse-attention indexer", pool, power_of_two=True)
        indexer = IndexerShape(pool, attention, kernel_states=(32, 64))
    return ModelShape(
        family="GLM-5.3-Flash",
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=latent_attention(text, 0),
        attention_layers=attention,
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(
            RecurrentLayers(
                KimiDelta(
                    heads=text.integer("linear_num_heads", default=64),
                    head_dim=text.integer("linear_head_dim", default=128),
                    conv=text.integer("linear_conv_kernel_dim", default=4),
                ),
                recurrent,
            ),
        ),
        kernel_chunk=CHUNK,
        state_dtype_rule=StateDtypeRule.FLOAT32,
        checkpointing=Checkpointing.FLASH_KDA,
        mtp_layers=text.integer("num_nextn_predict_layers", default=1),
        ring=ring,
        indexer=indexer,
        multimodal=config.has("vision_config"),
    )
