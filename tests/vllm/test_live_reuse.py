"""On a real vLLM for CPUs: what is reused, in how many steps, and which states are kept."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")
from tests.vllm.live.runs import experiments

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
MODELS = {"qwen3-next": "reuse", "qwen3.5": "reuse,dense"}
RULES = ("exact", "fast")


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cells(model: str, experiment: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = experiments(model, MODELS[model])[experiment]["cells"]
    return found


def test_the_plugin_is_active_and_says_so(model: str) -> None:
    found = experiments(model, MODELS[model])
    assert found["status"] == "active"
    assert "statemark: prefills are cut by the rule 'exact' (chosen by the default)" in found["log"]
    assert found["log"].count("minimum-prefix") == 1  # the check, once an engine


def test_a_re_ask_reuses_all_that_it_can(model: str) -> None:
    """Prompts of B-1 to 10B tokens at budgets of 512 to 8192, under both rules."""
    ours = [c for c in cells(model, "reuse") if c["rule"] in RULES]
    assert len(ours) == 2 * 4 * 8
    assert [c["cached"] for c in ours] == [c["ideal"] for c in ours]


def test_fast_never_takes_more_steps_than_vllm_itself(model: str) -> None:
    by_rule = {(c["rule"], c["budget"], c["length"]): c["steps"] for c in cells(model, "reuse")}
    for (rule, budget, length), steps in by_rule.items():
        if rule == "fast":
            assert steps <= by_rule["vllm-0.32", budget, length]


def test_exact_takes_the_same_steps_at_every_budget(model: str) -> None:
    block = experiments(model, MODELS[model])["reuse"]["block"]
    for cell in cells(model, "reuse"):
        if cell["rule"] == "exact" and cell["budget"] >= block:
            assert cell["steps"] == -(-cell["length"] // block)


def test_every_boundary_is_kept_where_all_are_wanted() -> None:
    found = experiments("qwen3.5", MODELS["qwen3.5"])["dense"]
    for rule in RULES:
        assert found["rules"][rule]["kept"] == found["boundaries"]
        assert found["rules"][rule]["reused"] == list(range(1, 10))
    stock = found["rules"]["vllm-0.32"]
    assert stock["kept"] < found["boundaries"]  # interior ones are null at this budget
    assert stock["reused"] != list(range(1, 10))
