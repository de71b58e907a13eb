"""Mamba families: Granite-4-H, Nemotron-H, Falcon-H1, Bamba and Zamba2 (Mamba-2), Jamba (Mamba-1)."""

from __future__ import annotations

from statemark.align.families.common import context_length, count_layers, plain_attention
from statemark.align.fields import Fields
from statemark.align.shape import AttentionShape, Checkpointing, ModelShape, RecurrentLayers, StateDtypeRule
from statemark.align.states import Mamba1, Mamba2
from statemark.align.units import KernelChunk
from statemark.errors import CheckpointError

GONE_FROM_VLLM = "0.23"


def _mamba2(text: Fields, inner: int) -> Mamba2:
    """The field names that Granite, Falcon-H1 and Bamba share."""
    return Mamba2(
        inner=inner,
        groups=text.integer("mamba_n_groups", default=1),
        heads=text.integer("mamba_n_heads", default=128),
        head_dim=text.integer("mamba_d_head"),
        state=text.integer("mamba_d_state", default=256),
        conv=text.integer("mamba_d_conv", default=4),
    )


def _shape(
    family: str,
    architecture: str,
    text: Fields,
    layers: tuple[int, int],
    kind: Mamba1 | Mamba2,
    chunk: int,
    *,
    attention: AttentionShape | None = None,
    rule: StateDtypeRule = StateDtypeRule.FOLLOW,
    config_state_dtype: str | None = None,
    mtp_layers: int = 0,
    gone_since: str | None = None,
) -> ModelShape:
    return ModelShape(
        family=family,
        architecture=architecture,
        dtype=text.dtype(),
        max_model_len=context_length(text),
        attention=attention or plain_attention(text),
        attention_layers=layers[0],
        query_heads=text.integer("num_attention_heads"),
        hidden_size=text.integer("hidden_size"),
        recurrent=(RecurrentLayers(kind, layers[1]),),
        kernel_chunk=KernelChunk(chunk),
        state_dtype_rule=rule,
        config_state_dtype=config_state_dtype,
        checkpointing=Checkpointing.ANY_POSITION if isinstance(kind, Mamba2) else Checkpointing.NEVER,
        mtp_layers=mtp_layers,
        gone_since=gone_since,
    )


def granite(config: Fields, text: Fields, architecture: str) -> ModelShape:
    inner = text.integer("mamba_expand", default=2) * text.integer("hidden_size")
    return _shape(
        "Granite-4-H",
        architecture,
        text,
        count_layers(text, text.strings("layer_types") or text.strings("layers_block_type")),
        _mamba2(text, inner),
        text.integer("mamba_chunk_size", default=256),
    )


def falcon_h1(config: Fields, text: Fields, architecture: str) -> ModelShape:
    if text.has("mamba_d_ssm"):
        inner = text.integer("mamba_d_ssm")
    else:
        inner = text.integer("mamba_expand", default=2) * text.integer("hidden_size")
    layers = text.integer("num_hidden_layers")  # attention and Mamba run side by side in every layer
    return _shape(
        "Falcon-H1",
        architecture,
        text,
        (layers, layers),
        _mamba2(text, inner),
        text.integer("mamba_chunk_size", default=256),
    )


def bamba(config: Fields, text: Fields, architecture: str) -> ModelShape:
    inner = text.integer("mamba_expand", default=2) * text.integer("hidden_size")
    attention = len(text.integers("attn_layer_indices") or [])
    layers = text.integer("num_hidden_layers")
    return _shape(
        "Bamba",
        architecture,
        text,
        (attention, layers - attention),
        _mamba2(text, inner),
        text.integer("mamba_chunk_size", default=256),
        gone_since=GONE_FROM_VLLM,
    )


def nemotron_h(config: Fields, text: Fields, architecture: str) -> ModelShape:
    pattern = text.text("hybrid_override_pattern")
    if pattern is not None:
        strange = sorted(set(pattern) - set("M*-E"))
        if strange:
            raise CheckpointError(f"{text.where}: hybrid_override_pattern has unknown letters {''.join(strange)!r}")
        layers = (pattern.count("*"), pattern.count("M"))
    else:
        layers = count_layers(text, text.strings("layers_block_type"))
    heads = text.integer("mamba_num_heads", default=128)
    head_dim = text.integer("mamba_head_dim", default=64)
    kind = Mamba2(
        inner=heads * head_dim,
        groups=text.integer("n_groups", default=8),
        heads=heads,
        head_dim=head_dim,
        state=text.integer("ssm_state_size", default=128),
        conv=text.integer("conv_kernel", default=4),
    )
    return _shape(
        "Nemotron-H",
        architecture,
        text,
        layers,
        kind,
        text.integer("chunk_size", default=128),
        rule=StateDtypeRule.CONFIG_OR_FLOAT32,
        config_state_dtype=text.text("mamba_ssm_cache_dtype"),
        mtp_layers=text.integer("num_nextn_predict_layers", default=0),
    )


def zamba2(config: Fields, text: Fields, architecture: str) -> ModelShape:
    names = text.strings("layers_block_type")
    if names is None:
        raise CheckpointError(f"{text.where}: layers_block_type is missing")
    attention = AttentionShape(
        kv_heads=text.integer("num_key_value_heads", default=text.integer("num_attention_heads")),
        head_dim=text.integer("attention_head_dim"),
    )
    kind = Mamba2(
        inner=text.integer("mamba_expand", default=2) * text.integer("hidden_size"),
        groups=text.integer("mamba_ngroups", default=1),
        heads=text.integer("n_mamba_heads", default=8),
        head_dim=text.integer("mamba_headdim"),
        state=text.integer("mamba_d_state", default=64),
        conv=text.integer("mamba_d_conv", default=4),
    )
    layers = (
        sum(n == "hybrid" for n in names),
        len(names),
    )  # a hybrid layer holds an attention block and a Mamba block
    chunk = text.integer("chunk_size", default=256)
    return _shape("Zamba2", architecture, text, layers, kind, chunk, attention=attention)


def jamba(config: Fields, text: Fields, architecture: str) -> ModelShape:
    layers = text.integer("num_hidden_layers")
    period = text.integer("attn_layer_period", default=8)
    offset = text.integer("attn_layer_offset", default=4)
    attention = sum(i % period == offset for i in range(layers))
    kind = Mamba1(
        inner=text.integer("mamba_expand", default=2) * text.integer("hidden_size"),
        state=text.integer("mamba_d_state", default=16),
        conv=text.integer("mamba_d_conv", default=4),
    )
    return _shape("Jamba", architecture, text, (attention, layers - attention), kind, 1)
