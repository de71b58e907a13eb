"""config.json: defaults as in transformers, both layouts, and a named error for whatever would change the maths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statemark.errors import CheckpointError
from statemark.models.config import ATTENTION, RECURRENT, parse_config, read_config

MINIMAL: dict[str, Any] = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}


def parse(**keys: Any) -> Any:
    return parse_config({**MINIMAL, **keys})


def test_missing_keys_get_transformers_defaults() -> None:
    config = parse()
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (248320, 4096, 12288)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (16, 4, 256)
    assert (config.linear_num_key_heads, config.linear_num_value_heads) == (16, 32)
    assert (config.linear_key_head_dim, config.linear_value_head_dim, config.linear_conv_kernel_dim) == (128, 128, 4)
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-6, 32768)
    assert (config.tie_word_embeddings, config.attention_bias) == (False, False)
    assert (config.rope_theta, config.rotary_dim) == (10000.0, 64)
    assert config.layer_types == (RECURRENT, RECURRENT, RECURRENT, ATTENTION) * 8
    assert config.eos_token_ids == ()
    assert config.notices == ()


def test_nested_text_config_is_read_and_the_outer_tie_decides() -> None:
    text = {"hidden_size": 64, "tie_word_embeddings": False, "eos_token_id": 7}
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5", "text_config": text}
    config = parse_config({**outer, "tie_word_embeddings": True, "vision_config": {"depth": 2}})
    assert config.hidden_size == 64
    assert config.tie_word_embeddings is True
    assert config.eos_token_ids == (7,)
    assert parse_config(outer).tie_word_embeddings is False


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0, "partial_rotary_factor": 0.5}}, (5.0, 128)),
        ({"rope_theta": 7e6, "partial_rotary_factor": 0.75}, (7e6, 192)),
        ({"rope_theta": 7e6, "rope_parameters": {"rope_theta": 3}}, (3.0, 64)),
        ({"rope_scaling": {"type": "default", "rope_theta": 9.0}, "rope_parameters": {"rope_theta": 3}}, (9.0, 64)),
        ({"rope_parameters": None, "rope_scaling": None}, (10000.0, 64)),
        ({"rope_parameters": {"mrope_section": [1, 2, 3], "mrope_interleaved": True}}, (10000.0, 64)),
    ],
)
def test_rope_spellings(keys: dict[str, Any], expected: tuple[float, int]) -> None:
    config = parse(**keys)
    assert (config.rope_theta, config.rotary_dim) == expected


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"num_hidden_layers": 3, "full_attention_interval": 1}, (ATTENTION,) * 3),
        ({"num_hidden_layers": 3, "full_attention_interval": 2}, (RECURRENT, ATTENTION, RECURRENT)),
        ({"num_hidden_layers": 2, "full_attention_interval": 9}, (RECURRENT,) * 2),
        # Given types win over an interval that disagrees.
        (
            {"num_hidden_layers": 2, "layer_types": [ATTENTION, RECURRENT], "full_attention_interval": 2},
            (ATTENTION, RECURRENT),
        ),
    ],
)
def test_layer_patterns(keys: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert parse(**keys).layer_types == expected


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        ({"hidden_act": "gelu"}, ["hidden_act", "'gelu'"]),
        ({"attn_output_gate": False}, ["attn_output_gate", "False"]),
        ({"output_gate_type": "sigmoid"}, ["output_gate_type", "'sigmoid'"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "fp8"]),
        ({"sliding_window": 4096}, ["sliding_window", "4096"]),
        ({"num_experts": 8}, ["num_experts", "8"]),
        ({"mlp_only_layers": [1]}, ["mlp_only_layers", "[1]"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["rope_type", "'yarn'"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope_type", "'linear'"]),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ["rope_parameters.full_attention"]),
        ({"rope_parameters": {"factor": 2.0}}, ["rope_parameters.factor", "2.0"]),
        ({"rope_parameters": 5}, ["rope_parameters", "5"]),
        ({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, ["layer_types[0]", "'sliding_attention'"]),
        ({"num_hidden_layers": 1, "layer_types": "full_attention"}, ["layer_types", "list"]),
        ({"num_hidden_layers": 3, "layer_types": [ATTENTION]}, ["layer_types", "1", "3"]),
        ({"full_attention_interval": 0}, ["full_attention_interval", "0"]),
        ({"partial_rotary_factor": 1.5}, ["partial_rotary_factor", "1.5"]),
        ({"partial_rotary_factor": 0.001}, ["partial_rotary_factor", "0 dimensions"]),
        ({"head_dim": 24, "partial_rotary_factor": 0.3}, ["partial_rotary_factor", "7 dimensions"]),
        ({"head_dim": 20, "partial_rotary_factor": 0.5}, ["head_dim", "20", "multiples of 8"]),
        ({"linear_key_head_dim": 12}, ["linear_key_head_dim", "12"]),
        ({"linear_value_head_dim": 4}, ["linear_value_head_dim", "4"]),
        ({"linear_conv_kernel_dim": 17}, ["linear_conv_kernel_dim", "17", "1 to 16"]),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, ["num_attention_heads = 6", "4"]),
        ({"linear_num_value_heads": 5, "linear_num_key_heads": 2}, ["linear_num_value_heads = 5", "2"]),
        ({"hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({"hidden_size": True}, ["hidden_size", "True"]),
        ({"vocab_size": 0}, ["vocab_size", "0"]),
        ({"num_hidden_layers": -1}, ["num_hidden_layers", "-1"]),
        ({"tie_word_embeddings": 1}, ["tie_word_embeddings", "1"]),
        ({"rms_norm_eps": 0}, ["rms_norm_eps", "0"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps", "nan"]),
        ({"eos_token_id": "</s>"}, ["eos_token_id", "'</s>'"]),
        ({"eos_token_id": [1, -2]}, ["eos_token_id", "-2"]),
        ({"text_config": 3}, ["text_config", "3"]),
    ],
)
def test_what_is_not_supported_is_named_with_its_value(keys: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        parse(**keys)
    for part in parts:
        assert part in f"{error.value.message}; {error.value.hint}"


def test_unsupported_values_inside_text_config_are_found_too() -> None:
    with pytest.raises(CheckpointError, match=r"hidden_act.*'relu'"):
        parse_config({"architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {"hidden_act": "relu"}})


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"architectures": ["A", "B"]}, "A, B"),
        ({"architectures": []}, ""),
        ({"model_type": "llama"}, "model_type 'llama'"),
        ({}, "model_type None"),
    ],
)
def test_other_architectures_are_named_and_the_supported_ones_listed(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError) as error:
        parse_config(keys)
    assert f"unsupported architecture: {named}" in error.value.message
    assert error.value.hint == "supported: Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration"


def test_kind_alone_is_enough() -> None:
    assert parse_config({"model_type": "qwen3_5_text"}).architecture == "Qwen3_5ForCausalLM"
    assert parse_config({"model_type": "qwen3_5"}).architecture == "Qwen3_5ForConditionalGeneration"


def test_keys_without_effect_are_silent_and_unknown_ones_are_said() -> None:
    quiet = {"use_cache": False, "attention_dropout": 0.1, "mtp_num_hidden_layers": 1, "transformers_version": "5"}
    assert parse(**quiet, new_switch=False, new_list=[]).notices == ()
    assert parse(new_scale=2.0, another="x").notices == ("config keys not known here were ignored: another, new_scale",)


def test_state_dtype_is_float32_whatever_the_config_wants() -> None:
    assert parse(mamba_ssm_dtype="float32").notices == ()
    assert "bfloat16" in parse(mamba_ssm_dtype="bfloat16").notices[0]


def test_dimensions_of_absent_layer_kinds_do_not_matter() -> None:
    assert parse(num_hidden_layers=1, full_attention_interval=1, linear_key_head_dim=5).num_recurrent_layers == 0
    assert parse(num_hidden_layers=1, head_dim=20, partial_rotary_factor=0.5).num_attention_layers == 0


@pytest.mark.parametrize(("text", "part"), [("{", "can't be read"), ("[1]", "holds a list"), (None, "no config.json")])
def test_a_bad_file_is_named(tmp_path: Path, text: str | None, part: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError) as error:
        read_config(tmp_path)
    assert part in error.value.message
    assert "config.json" in error.value.message
