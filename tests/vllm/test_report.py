"""What the log says at start, at which level, and that it never takes the server with it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from statemark.align import findings
from statemark.align.rules import RULES
from statemark.vllm import plugin, report, versions
from statemark.vllm.activation import Status
from statemark.vllm.report import GUARANTEES, observe, price
from statemark.vllm.scheduler import scheduler_class
from tests.vllm import fakes
from tests.vllm.fakes import FullAttentionSpec, MambaSpec, SlidingWindowSpec, caches, config, group, uniform_groups

MIXED = [
    group(FullAttentionSpec(1648)),
    group(MambaSpec(1648)),
    group(SlidingWindowSpec(64, sliding_window=4096), drafter=True),
]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """(level, text) of what was logged since."""
    caplog.set_level(logging.INFO, "vllm.statemark")
    return lambda: [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "vllm.statemark"]


def build(groups: list[Any] | None = None, retention: int | None = 0, **options: Any) -> Any:
    return scheduler_class(fakes.Scheduler)(config(**options), caches(groups or uniform_groups(), retention))


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_an_active_rule_is_named_with_guarantee_and_price(rule: str, lines: Any) -> None:
    build(budget=8192, additional={"statemark": {"rule": rule}})
    said = [text for _, text in lines()]
    assert f"cut by the rule '{rule}' (chosen by the additional config) on the state grid of 384 tokens" in said[0]
    assert GUARANTEES[rule] in said[1]
    steps = {"exact": 43, "fast": 3}[rule]
    assert f"a prompt of 16,383 tokens takes {steps} steps at a budget of 8,192, with vLLM's own cut 3" in said[2]


@pytest.mark.usefixtures("known")
def test_nothing_to_do_is_no_warning(lines: Any) -> None:
    """A server that is fine: a block of 384 in 2048 tokens, with the cut that settles the rest."""
    build(uniform_groups(384), budget=2048)
    assert {level for level, _ in lines()} == {logging.INFO}


@pytest.mark.usefixtures("known")
def test_the_rule_settles_what_stock_would_be_warned_of(lines: Any) -> None:
    observe(fakes.Scheduler(config(), caches(MIXED)))
    stock = lines()
    assert any(level == logging.WARNING and "wrong-grid" in text for level, text in stock)
    assert any("statemark's vLLM plugin" in text for _, text in stock)
    build(MIXED)
    assert not any("wrong-grid" in text for _, text in lines()[len(stock) :])


def test_an_idle_budget_is_a_warning_on_vllms_own_cut(lines: Any) -> None:
    observe(fakes.Scheduler(config(budget=2048), caches(uniform_groups(1152))))
    said = [text for level, text in lines() if level == logging.WARNING]
    assert any("idle-budget" in text and "44%" in text and "--max-num-batched-tokens" in text for text in said)


@pytest.mark.usefixtures("known")
def test_a_retention_interval_is_read_from_the_final_configuration(lines: Any) -> None:
    observe(fakes.Scheduler(config(budget=8192), caches(uniform_groups(), retention=None)))
    assert any("interval-without-stops" in text for _, text in lines())


def test_an_unknown_version_is_a_warning_and_the_findings_follow(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: tuple("0" * 12 for _ in versions.FUNCTIONS))
    scheduler = build(MIXED)
    assert scheduler.statemark.status is Status.UNKNOWN_VERSION
    level, text = lines()[0]
    assert level == logging.WARNING
    assert "vLLM's own cut is used (unknown version)" in text
    assert any("wrong-grid" in text for _, text in lines())


def test_pure_attention_models_hear_nothing(lines: Any) -> None:
    observe(fakes.Scheduler(config(), caches([group(FullAttentionSpec(16))])))
    assert lines() == []


@pytest.mark.usefixtures("known")
def test_a_failing_report_does_not_stop_the_server(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find", lambda setup: 1 / 0)
    assert build().statemark.status is Status.ACTIVE
    observe(fakes.Scheduler(config(), caches(uniform_groups())))
    failures = [text for level, text in lines() if level == logging.WARNING]
    assert len(failures) == 2


@pytest.mark.usefixtures("known")
def test_the_price_where_stock_never_ends() -> None:
    groups = [group(FullAttentionSpec(2048)), group(MambaSpec(2048))]
    spec = SimpleNamespace(method="draft_model", max_num_new_slots_for_drafting=8)
    scheduler = build(groups, budget=2048, speculative=spec)
    assert scheduler.statemark.status is Status.ACTIVE
    assert "with vLLM's own cut no end" in price(scheduler.statemark.layout, "exact")


def test_settled_findings_are_findings() -> None:
    """A code that no finding has would hide a renamed one."""
    source = {f for rule in RULES for f in findings.settled_by(rule)}
    text = "".join(
        open(module.__file__).read()  # noqa: SIM115
        for module in (findings.budget, findings.correctness, findings.reach)
    )
    assert source
    assert all(f'code="{code}"' in text for code in source)
    assert findings.settled_by(None) == findings.settled_by("vllm-0.32") == frozenset()


@pytest.mark.usefixtures("factory")
class TestGeneralPlugin:
    def test_every_scheduler_is_reported_once(self, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fakes.Scheduler, "__init__", fakes.Scheduler.__init__)
        plugin.register()
        plugin.register()
        fakes.Scheduler(config(), caches(MIXED))
        assert sum("wrong-grid" in text for _, text in lines()) == 1
        before = len(lines())
        scheduler_class(fakes.Scheduler)(config(), caches(uniform_groups()))
        said = [text for _, text in lines()[before:]]
        assert sum("minimum-prefix" in text for text in said) == 1  # by itself, not by the watch as well

    def test_off_watches_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STATEMARK_VLLM", "off")
        before = fakes.Scheduler.__init__
        plugin.register()
        assert fakes.Scheduler.__init__ is before
