"""The bundled files: sizes, the configuration, the tokenizer's round trips."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from statemark import bundled

LIMIT = 10_000_000
FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "MODEL_CARD.md",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(bundled.path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def config() -> dict[str, object]:
    loaded: dict[str, object] = json.loads((bundled.path() / "config.json").read_text())
    return loaded


@pytest.mark.parametrize("name", FILES)
def test_file_is_there_and_not_empty(name: str) -> None:
    assert (bundled.path() / name).stat().st_size > 50


def test_weights_fit_the_budget() -> None:
    assert (bundled.path() / "model.safetensors").stat().st_size <= LIMIT


def test_weights_match_the_configuration(config: dict[str, int]) -> None:
    from safetensors import safe_open

    with safe_open(bundled.path() / "model.safetensors", "np") as weights:
        names = set(weights.keys())
        shape = weights.get_slice("model.embed_tokens.weight").get_shape()
    assert shape == [config["vocab_size"], config["hidden_size"]]
    kinds: list[str] = config["layer_types"]  # type: ignore[assignment]
    assert len(kinds) == config["num_hidden_layers"]
    for i, kind in enumerate(kinds):
        mixer = "self_attn.q_proj.weight" if kind == "full_attention" else "linear_attn.in_proj_qkv.weight"
        assert f"model.layers.{i}.{mixer}" in names
    assert "lm_head.weight" not in names  # tied: a second copy would be dead bytes


def test_pattern_is_three_recurrent_layers_to_one_attention_layer(config: dict[str, list[str]]) -> None:
    kinds = config["layer_types"]
    assert kinds == (["linear_attention"] * 3 + ["full_attention"]) * (len(kinds) // 4)


def test_two_to_six_million_parameters() -> None:
    from math import prod

    from safetensors import safe_open

    with safe_open(bundled.path() / "model.safetensors", "np") as weights:
        total = sum(prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    assert 2_000_000 <= total <= 6_000_000


def test_every_token_has_a_row(tokenizer: Tokenizer, config: dict[str, int]) -> None:
    assert tokenizer.get_vocab_size() <= config["vocab_size"]


def test_generation_stops_at_the_end_of_a_message(tokenizer: Tokenizer) -> None:
    generation = json.loads((bundled.path() / "generation_config.json").read_text())
    assert tokenizer.token_to_id("<|im_end|>") in generation["eos_token_id"]


@settings(deadline=None)
@given(st.text(max_size=200).filter(lambda t: "<" not in t))
def test_any_text_comes_back(text: str) -> None:
    import unicodedata

    tokenizer = Tokenizer.from_file(str(bundled.path() / "tokenizer.json"))
    decoded = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
    assert decoded == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("token", ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"])
def test_marks_are_single_tokens(tokenizer: Tokenizer, token: str) -> None:
    assert tokenizer.encode(f"a {token}b").tokens.count(token) == 1


def test_tags_survive_decoding_without_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>assistant\n<think>\n- a\n</think>\n\nb<|im_end|>").ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "assistant\n<think>\n- a\n</think>\n\nb"


@pytest.mark.parametrize("value", ["7", "42", "07", "4821", "14:05"])
def test_values_are_one_token_a_pair_of_digits(tokenizer: Tokenizer, value: str) -> None:
    pieces = [t.lstrip("Ġ") for t in tokenizer.encode(f" {value}").tokens]
    digits = [p for p in pieces if p.isdigit()]
    assert "".join(pieces) == value
    assert all(len(d) == 2 for d in digits) or len(value) == 1
