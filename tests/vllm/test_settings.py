"""What the operator asked for, and who may say so."""

from __future__ import annotations

import pytest

from statemark.errors import ConfigurationError
from statemark.vllm.settings import CHOICES, Settings, read_settings


def test_exact_is_the_default() -> None:
    for additional in ({}, None, {"gdn_prefill_backend": "triton"}, {"statemark": {}}, object()):
        assert read_settings(additional, {}).rule == "exact"


@pytest.mark.parametrize("choice", CHOICES)
def test_each_choice_from_either_side(choice: str) -> None:
    rule = None if choice == "off" else choice
    assert read_settings({"statemark": {"rule": choice}}, {}) == Settings(rule, "the additional config")
    assert read_settings({}, {"STATEMARK_VLLM": choice.upper()}).rule == rule


def test_the_environment_outranks_the_config() -> None:
    assert read_settings({"statemark": {"rule": "fast"}}, {"STATEMARK_VLLM": "off"}).rule is None
    assert read_settings({"statemark": {"rule": "off"}}, {"STATEMARK_VLLM": "fast"}).rule == "fast"


@pytest.mark.parametrize(
    "additional",
    [
        {"statemark": "fast"},
        {"statemark": {"rule": "dense"}},
        {"statemark": {"rule": ["fast"]}},
        {"statemark": {"mode": "fast"}},
    ],
)
def test_what_is_not_understood_is_refused(additional: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read_settings(additional, {})
    assert caught.value.hint


def test_an_unknown_value_in_the_environment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="STATEMARK_VLLM=on is not a choice"):
        read_settings({}, {"STATEMARK_VLLM": "on"})
