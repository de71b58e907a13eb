"""Configs of every family: what they come to, what defaults they may leave out, and how bad ones are refused."""

from __future__ import annotations

import pytest

from statemark.align.families import _BY_ARCHITECTURE, _BY_TYPE, read_model
from statemark.align.shape import Checkpointing, StateDtypeRule
from statemark.align.states import GatedDelta, KimiDelta, Mamba1, Mamba2, ShortConv
from statemark.errors import CheckpointError
from tests.align import tiny_models

KIMI = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "hidden_size": 2304,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "linear_attn_config": {
        "kda_layers": [n for n in range(1, 28) if n % 4],
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
    },
}


def test_qwen3_next() -> None:
    shape = read_model(tiny_models.qwen3_next())
    assert (shape.attention_layers, shape.recurrent_layers) == (2, 6)
    assert shape.recurrent[0].kind == GatedDelta(4, 8, 64, 64, 4)
    assert shape.kernel_chunk.tokens == 64
    assert shape.checkpointing is Checkpointing.NEVER


def test_qwen3_5_reads_the_text_part_and_the_state_dtype_of_its_config() -> None:
    text = tiny_models.qwen3_5()
    shape = read_model({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text, "vision_config": {}})
    assert shape.multimodal
    assert shape.state_dtype_rule is StateDtypeRule.CONFIG
    assert shape.config_state_dtype == "float32"


def test_layers_without_a_list_follow_the_interval() -> None:
    config = tiny_models.qwen3_next(num_hidden_layers=48)
    del config["layer_types"]
    shape = read_model(config)
    assert (shape.attention_layers, shape.recurrent_layers) == (12, 36)


def test_kimi_linear_and_its_newer_spelling() -> None:
    old = read_model(KIMI)
    new = read_model(
        {k: v for k, v in KIMI.items() if k != "linear_attn_config"}
        | {"layer_types": ["linear_attention"] * 21 + ["full_attention"] * 6}
        | {"linear_num_heads": 32, "linear_head_dim": 128}
    )
    assert old.recurrent[0].kind == new.recurrent[0].kind == KimiDelta(32, 128, 4)
    assert old.attention.latent
    assert old.attention.head_dim == 576
    assert (old.attention_layers, old.recurrent_layers) == (6, 21)


def test_mamba_families() -> None:
    granite = read_model(tiny_models.granite())
    assert granite.recurrent[0].kind == Mamba2(512, 1, 8, 64, 64, 4)
    assert granite.checkpointing is Checkpointing.ANY_POSITION
    assert granite.kernel_chunk.tokens == 256
    nemotron = read_model(tiny_models.nemotron_h())
    assert (nemotron.attention_layers, nemotron.recurrent_layers) == (2, 4)
    falcon = read_model(tiny_models.falcon_h1())
    assert (falcon.attention_layers, falcon.recurrent_layers) == (4, 4)  # side by side in every layer
    jamba = read_model(tiny_models.jamba())
    assert jamba.recurrent[0].kind == Mamba1(512, 16, 4)
    assert (jamba.attention_layers, jamba.recurrent_layers) == (2, 6)
    zamba = read_model(tiny_models.zamba2())
    assert (zamba.attention_layers, zamba.recurrent_layers) == (3, 6)


def test_lfm2() -> None:
    shape = read_model(tiny_models.lfm2())
    assert shape.recurrent[0].kind == ShortConv(256, 3)
    assert shape.kernel_chunk.tokens == 1


def test_qwen4_exp_keeps_the_larger_of_two_states() -> None:
    config = tiny_models.qwen3_5(model_type="qwen4_exp_text", architectures=["Qwen4ExpForCausalLM"])
    plain = read_model(config)
    assert [type(r.kind) for r in plain.recurrent] == [GatedDelta, ShortConv]
    assert plain.recurrent_layers == 6  # no embedding layer, but vLLM sizes its block by one
    full = read_model(config | {"ple_layer_ids": [0], "indexer_n_heads": 4, "indexer_compress_ratio": 4})
    assert full.recurrent_layers == 7
    assert full.ring is not None
    assert full.ring.block(0) == 4


def test_glm_5_3_flash() -> None:
    config = {
        "model_type": "glm5_next_text",
        "hidden_size": 4096,
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "index_kpool": 16,
    }
    shape = read_model(config)
    assert shape.attention.head_dim == 512
    assert shape.recurrent[0].kind == KimiDelta(64, 128, 4)
    assert shape.indexer is not None
    assert shape.indexer.kernel_states == (32, 64)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"], "num_attention_heads": 8}, "pure-attention model"),
        (
            {"architectures": ["FrobnicateForCausalLM"], "mamba_d_state": 16},
            "unknown architecture 'FrobnicateForCausalLM'",
        ),
        ({}, "unknown architecture 'no architecture'"),
        (tiny_models.qwen3_next(layer_types=["full_attention"] * 8), "without a recurrent layer"),
        (tiny_models.qwen3_next(layer_types=["linear_attention"] * 8), "without an attention layer"),
        (
            tiny_models.qwen3_next(layer_types=["linear_attention", "holographic"]),
            "unknown kinds of layer: holographic",
        ),
        (tiny_models.qwen3_next(linear_num_value_heads="many"), "linear_num_value_heads must be a whole number"),
        (tiny_models.qwen3_next(num_attention_heads=None), "num_attention_heads is missing"),
        (tiny_models.qwen3_next(layer_types="linear"), "layer_types must be a list of names"),
        (tiny_models.nemotron_h(hybrid_override_pattern="M-X*"), "unknown letters 'X'"),
        (tiny_models.qwen3_next(torch_dtype="float8"), "unknown dtype 'float8'"),
        (tiny_models.qwen3_next(text_config=7), "text_config must be an object"),
    ],
)
def test_bad_configs_are_named(config: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_model(config, "model/config.json")


def test_float32_checkpoints_are_served_in_bfloat16() -> None:
    assert read_model(tiny_models.qwen3_next(torch_dtype="float32")).dtype == "bfloat16"
    assert read_model(tiny_models.qwen3_next(torch_dtype="torch.float16")).dtype == "float16"


def test_every_architecture_has_a_reader() -> None:
    assert set(_BY_ARCHITECTURE.values()) <= set(_BY_TYPE)


DEFAULTS = {
    "qwen3_next": {},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "qwen4_exp_text": {},
    "olmo_hybrid": {},
    "glm5_next_text": {},
    "granitemoehybrid": {},
    "nemotron_h": {},
    "falcon_h1": {},
    "jamba": {},
    "lfm2": {},
    "zamba2": {},
}


@pytest.mark.reference
@pytest.mark.parametrize("model_type", sorted(DEFAULTS))
def test_defaults_are_those_of_the_config_classes(model_type: str) -> None:
    """A config.json that leaves out what equals the class's default means the same."""
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip("not in this version of transformers")
    whole = transformers.CONFIG_MAPPING[model_type]().to_dict()
    if model_type == "lfm2":
        whole["layer_types"] = ["conv", "full_attention"] * 16
    if model_type == "granitemoehybrid":  # the class's own default has no attention layer, which align mode refuses
        layers = whole["num_hidden_layers"]
        whole["layer_types"] = ["mamba"] * (layers - 1) + ["attention"]
    optional = {
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim", "mamba_d_conv", "mamba_expand", "mamba_chunk_size", "mamba_n_groups", "mamba_n_heads",
        "mamba_d_state", "conv_L_cache", "n_groups", "conv_kernel", "chunk_size", "ssm_state_size", "mamba_num_heads",
        "mamba_head_dim", "attn_layer_period", "attn_layer_offset", "linear_num_heads", "linear_head_dim", "ngram_size",
        "ple_conv_kernel_size", "hc_count", "mamba_ngroups", "n_mamba_heads",
    }  # fmt: skip
    short = {k: v for k, v in whole.items() if k not in optional}
    assert read_model(short).recurrent == read_model(whole).recurrent
