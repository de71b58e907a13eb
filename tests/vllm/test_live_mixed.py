"""Groups that lower the smallest block, and budgets in which nothing fits, on vLLM's real scheduler and engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("vllm")
from tests.vllm.live import bare
from tests.vllm.live.engine import text
from tests.vllm.live.runs import experiments

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
OURS = "statemark.vllm.Scheduler"
# Three layers' hidden states take three times a KV token here: their blocks are a third of the others'.
HIDDEN = {
    "speculative_config": {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}},
    }
}


@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_a_window_on_small_blocks(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1648, 1648 and a window on 64: vLLM keeps the state after 6144 as that after 6592, and a re-ask reads it."""
    specs = [bare.attention(1648), bare.state(1648), bare.attention(64, window=128)]
    stock = bare.Bare.build(None, specs, 2048)
    assert stock.ask("cold", text("window", 8240)) == 0
    assert stock.wrong() == [(6592, 6144)]
    assert stock.ask("again", text("window", 8240)) == 6592  # 448 tokens short, and nothing says so
    monkeypatch.setenv("STATEMARK_VLLM", rule)
    ours = bare.Bare.build(OURS, specs, 2048)
    assert ours.scheduler.statemark.status.value == "active"
    assert ours.ask("cold", text("window", 8240)) == 0
    assert ours.ask("again", text("window", 8240)) == 6592
    assert ours.wrong() == []


@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_hidden_states_on_small_blocks(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """800, 800 and hidden states on 200: the entry for 2400 holds the state after 2000, and a sibling hits it."""
    specs = [bare.attention(800), bare.state(800), bare.hidden(200)]
    shared = text("hidden", 2500)
    stock = bare.Bare.build(None, specs, 2048)
    stock.ask("a", shared + text("a", 200))
    assert stock.wrong() == [(2400, 2000)]
    assert stock.ask("b", shared + text("b", 300)) == 2400
    monkeypatch.setenv("STATEMARK_VLLM", rule)
    ours = bare.Bare.build(OURS, specs, 2048)
    ours.ask("a", shared + text("a", 200))
    assert ours.ask("b", shared + text("b", 300)) == 2400
    assert ours.wrong() == []


@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_blocks_that_meet_seldom(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention on 1088, states on 544: vLLM's first re-ask of 5,000 tokens reuses nothing."""
    specs = [bare.attention(1088), bare.state(544)]
    stock = bare.Bare.build(None, specs, 2048)
    assert [stock.ask(f"{n}", text("seldom", 5000)) for n in range(3)] == [0, 0, 4352]
    monkeypatch.setenv("STATEMARK_VLLM", rule)
    ours = bare.Bare.build(OURS, specs, 2048)
    assert [ours.ask(f"{n}", text("seldom", 5000)) for n in range(3)] == [0, 4352, 4352]


def test_recurrent_groups_that_disagree_stop_the_engine() -> None:
    with pytest.raises(ValueError, match=r"disagree about their block: .*784.*1568"):
        bare.Bare.build(OURS, [bare.attention(1568), bare.state(784), bare.state(1568)], 2048)


def mixed() -> list[dict[str, Any]]:
    found = experiments("qwen3.5", "mixed", json.dumps(HIDDEN))
    assert found["status"] == "active"
    units = found["mixed"]["units"]
    assert units["smallest"] < units["grid"]
    cells: list[dict[str, Any]] = found["mixed"]["cells"]
    return cells


def test_a_model_beside_hidden_states_answers_from_its_own_prefix() -> None:
    """By digest of the top-20 log-probabilities, re-asked and from a sibling."""
    cells = mixed()
    exact = [c for c in cells if c["rule"] == "exact"]
    assert all(all(c["same"]) and all(c["cached"]) for c in exact)


def test_the_same_model_under_vllms_own_cut_does_not() -> None:
    stock = [c for c in mixed() if c["rule"] == "vllm-0.32"]
    assert not all(all(c["same"]) and all(c["cached"]) for c in stock)


def company() -> dict[str, Any]:
    found: dict[str, Any] = experiments("qwen3.5-draft-narrow", "company")["company"]
    assert found["slots"] == 1
    return found


def test_prompts_pass_beside_running_requests_at_any_budget() -> None:
    """Budgets below, at and above the block, eight requests decoding with drafts: nothing stalls, the short prompt
    behind the long one isn't held up by it."""
    for cell in company()["cells"]:
        if cell["rule"] != "vllm-0.32":
            assert cell["long"] is not None
            assert cell["short"] is not None
            assert cell["without"] <= 2


def test_vllms_own_cut_stalls_where_the_budget_is_the_block() -> None:
    found = company()
    stock = next(c for c in found["cells"] if c["rule"] == "vllm-0.32" and c["budget"] == found["block"])
    assert stock["long"] is None
    assert stock["short"] is None
