"""Groups that lower the smallest block, and budgets in which nothing fits, on vLLM's real scheduler and engine."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")
from tests.vllm.live import bare
from tests.vllm.live.engine import text

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
OURS = "statemark.vllm.Scheduler"


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


BLOCK = 384
BUDGETS = (BLOCK - 128, BLOCK, BLOCK + 40, 2 * BLOCK + 20)  # below, at and above the block


def beside_running_requests(scheduler_class: str | None, budget: int) -> dict[str, Any]:
    made = bare.Bare.build(scheduler_class, [bare.attention(BLOCK), bare.state(BLOCK)], budget, drafter="draft_model")
    return made.company(text("long", 3 * BLOCK + 50))


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_prompts_pass_beside_running_requests(rule: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight requests decode, with a drafter that takes a slot of each step from every request: the long prompt gets
    tokens in every step, and the short one behind it isn't held up for long."""
    monkeypatch.setenv("STATEMARK_VLLM", rule)
    seen = beside_running_requests(OURS, budget)
    assert seen["without"] == 0
    assert seen["long"] is not None
    assert seen["short"] is not None


def test_vllms_own_cut_stalls_where_the_budget_is_the_block() -> None:
    seen = beside_running_requests(None, BLOCK)
    assert seen["long"] is None
    assert seen["short"] is None
