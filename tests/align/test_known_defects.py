"""The oracle proves something: the same search finds vLLM 0.32's known defects, and faults planted in our own rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from statemark.align import rules
from statemark.align.frame import Frame
from statemark.align.oracle import table
from statemark.align.oracle.table import Content, StateTable
from statemark.align.positions import Prefill, replay_spots
from statemark.align.rules.exact import ExactRule
from statemark.align.rules.fast import FastRule
from tests.align.histories import History, Request, histories, play, reask, run_offers, server

SEARCH = settings(
    max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True
)


def found(problem: str, *, rule: str = "vllm-0.32") -> History:
    """A history in which the search meets this problem; raises NoSuchExample where there is none."""
    return find(histories(), lambda h: any(problem in p for p in play(h, rule).problems), settings=SEARCH)


@pytest.mark.parametrize("problem", ["stale entry", "stale read", "a chunk cut to nothing"])
def test_the_search_finds_what_is_wrong_with_stock(problem: str) -> None:
    history = found(problem)
    assert any(problem in p for p in play(history, "vllm-0.32").problems)
    for rule in ("exact", "fast"):
        assert play(history, rule).problems == []


def test_6_1_wrong_grid_with_default_flags() -> None:
    """Attention and states on 1648, a sliding-window drafter on 64: the entry for 6592 holds the state after 6144."""
    machine = server(1648, 2048, window_page=64)
    request = Request((("p", 8240),))
    stale = play(History(machine, (request,)), "vllm-0.32").world.stale
    assert [(s.position, s.holds) for s in stale] == [(6592, 6144)]
    outcome = play(History(machine, (request, replace(request, arrives=50))), "vllm-0.32")
    assert outcome.jobs[1].stale_reads == 1


def test_6_1_hidden_state_group() -> None:
    """800, 800 and 200: the entry for 2400 holds 2000, and a sibling that shares 2,500 tokens hits it."""
    machine = server(800, 2048, page=800)
    machine = replace(
        machine,
        frame=replace(machine.frame, config_minimum=type(machine.frame.config_minimum)(200)),
    )
    history = History(machine, (Request((("s", 2500), ("a", 200))), Request((("s", 2500), ("b", 300)), arrives=50)))
    outcome = play(history, "vllm-0.32")
    assert (outcome.world.stale[0].position, outcome.world.stale[0].holds) == (2400, 2000)
    assert outcome.jobs[1].hits == [2400]
    assert outcome.jobs[1].stale_reads == 1


def test_6_5_replay_stop_in_the_wrong_unit() -> None:
    """Attention on 1088, states on 544, 5,000 tokens: the first re-ask hits nothing, the second 4352."""
    for budget in (2048, 8192):
        machine = server(544, budget, page=1088)
        requests = tuple(Request((("p", 5000),), arrives=50 * n) for n in range(3))
        assert [j.hits[0] for j in play(History(machine, requests), "vllm-0.32").jobs] == [0, 0, 4352]
        for rule in ("exact", "fast"):
            assert [j.hits[0] for j in play(History(machine, requests), rule).jobs] == [0, 4352, 4352]


def test_6_6_permanent_stall_beside_draft_slots() -> None:
    """B = T = 2048 and a drafter with 8 slots: the offer of 2040 never reaches a block."""
    frame = server(2048, 2048, draft_slots=8).frame
    assert run_offers("vllm-0.32", frame, 5000, [2048]) is None
    for rule in ("exact", "fast"):
        run = run_offers(rule, frame, 5000, [2048])
        assert run is not None
        assert run.ends[-1] == 5000


def test_6_7_reserve_against_the_grid() -> None:
    """B = T = 384, three MTP modules, 1,153 tokens: ends 384, 768, 1150, then nothing for ever."""
    frame = server(384, 384, drop=True, lookahead=3).frame
    assert run_offers("vllm-0.32", frame, 1153, [384]) is None
    cutter = rules.make_rule("vllm-0.32", frame)
    at, ends = 0, []
    while count := cutter.cut(Prefill(1153, 1153), at, min(384, 1153 - at)):
        at += count
        ends.append(at)
    assert ends == [384, 768, 1150]
    for rule in ("exact", "fast"):
        assert run_offers(rule, frame, 1153, [384]) is not None


def test_6_10_internal_checkpoint_after_a_start_inside_a_block() -> None:
    """Mamba-2, blocks of 384, match unit 16, prompts 4000, 5500 (shares 3990), 6000 (shares 4300 with the second): the
    entry for 4224 holds the state after 3984, and a fourth prompt reads it."""
    machine = server(384, 2048, match_unit=16, checkpoint_step=1)
    requests = (
        Request((("s", 3990), ("a", 10))),
        Request((("s", 3990), ("t", 310), ("b", 1200)), arrives=50),
        Request((("s", 3990), ("t", 310), ("c", 1700)), arrives=100),
        Request((("s", 3990), ("t", 310), ("d", 900)), arrives=150),
    )
    outcome = play(History(machine, requests), "vllm-0.32")
    assert (4224, 3984) in [(s.position, s.holds) for s in outcome.world.stale]
    assert outcome.jobs[3].stale_reads == 1
    for rule in ("exact", "fast"):
        assert play(History(machine, requests), rule).problems == []


@pytest.mark.parametrize(("budget", "present"), [(2048, 2), (8192, 0)])
def test_6_14_an_interval_adds_no_stops(budget: int, present: int) -> None:
    """B = 544, an interval of 8 blocks, 30,000 tokens: 2 of 6 periodic states at 2048, none at 8192. Ours: all 6."""
    machine = server(544, budget, retention=8 * 544)
    due = set(range(8 * 544, 30_000, 8 * 544))
    counts = {}
    for rule in ("vllm-0.32", "exact", "fast"):
        world = play(History(machine, (Request((("p", 30_000),)),)), rule).world
        counts[rule] = len(due & {e.position for e in world.cache.states.values()})
    assert counts == {"vllm-0.32": present, "exact": 6, "fast": 6}


# Faults planted in our own rules, and in the model itself. Each must be found by the properties of test_properties.py.


class WithoutGuard(FastRule):
    """Runs past a boundary that the cache keeps from inside its block."""

    def _stop(self, request: Prefill, start: int, end: int) -> int | None:
        return min((s for s in replay_spots(self.frame, request.prompt) if start < s < end), default=None)


class OnTheConfigMinimum(ExactRule):
    """Takes the smallest block for the grid, as stock does."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(replace(frame, grid=type(frame.grid)(frame.config_minimum.tokens)))


class OneTokenLate(ExactRule):
    """Ends one token past each boundary."""

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        return min(super().cut(request, start, offer) + 1, offer)


class Waits(ExactRule):
    """Gives nothing rather than less than a block."""

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        count = super().cut(request, start, offer)
        return count if start + count == request.known or self.frame.grid.on(start + count) else 0


class ForgetsJunctions(FastRule):
    """Leaves no state where siblings part."""

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        return super().cut(replace(request, junction=0), start, offer)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (WithoutGuard, "stale entry"),
        (OnTheConfigMinimum, "stale entry"),
        (OneTokenLate, "stale entry"),
        (Waits, "a chunk cut to nothing"),
        (ForgetsJunctions, "stale entry"),
    ],
)
def test_a_planted_fault_is_found(fault: type, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules.RULES, "planted", fault)
    found(problem, rule="planted")


def test_a_planted_fault_in_reuse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoReplayStop(FastRule):
        def _stop(self, request: Prefill, start: int, end: int) -> int | None:
            stop = super()._stop(request, start, end)
            return None if stop in replay_spots(self.frame, request.prompt) else stop

    monkeypatch.setitem(rules.RULES, "planted", NoReplayStop)

    def misses(history: History) -> bool:
        outcome = play(history, "planted")
        return any(a != b for a, b in (reask(outcome, r, "planted") for r in history.requests))

    find(histories(rough=False), misses, settings=SEARCH)


def test_a_planted_fault_in_the_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that forgets to copy the state into the next column."""

    class Forgetful(StateTable):
        def advance(self, content: Content) -> None:
            super().advance(replace(content, position=max(0, content.position - 1)))

    monkeypatch.setattr(table, "StateTable", Forgetful)
    monkeypatch.setattr("statemark.align.oracle.world.StateTable", Forgetful)
    found("stale entry", rule="exact")
