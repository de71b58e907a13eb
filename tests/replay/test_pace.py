"""When a drive sends what, on virtual time: think times, lanes, warm-up, duration and grace, salts, the open loop."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import numpy as np
import pytest

from statemark.client import Ask, Reply
from statemark.replay import drive
from statemark.replay.drive import Drive, Pace
from statemark.replay.records import Record
from statemark.replay.workload import SessionPlan, Turn, Vocabulary

ANSWER = 2.0  # seconds that every answer takes, unless a test says otherwise


class VirtualLoop(asyncio.SelectorEventLoop):
    """Where nothing is to be done now, it is the time of what comes next."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0]._when)
        super()._run_once()


@dataclass
class Server:
    """What was asked, when, and how many answers ran at once."""

    loop: VirtualLoop
    seconds: float = ANSWER
    asks: list[tuple[float, Ask]] = field(default_factory=list)
    running: int = 0
    most: int = 0

    async def stream(self, ask: Ask, reply: Reply) -> AsyncGenerator[None, None]:
        reply.sent = self.loop.time()
        self.asks.append((reply.sent, ask))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
            reply.arrivals.append((self.loop.time(), 1))
            yield
            reply.ended = self.loop.time()
        finally:
            self.running -= 1


def plan(name: str, waits: list[float], *, after_end: bool = False, at: float = 0.0) -> SessionPlan:
    prompt = np.arange(20, dtype=np.int64)
    return SessionPlan(name, tuple(Turn(prompt, 4, wait, after_end) for wait in waits), at)


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch):
    def go(plans: list[SessionPlan], pace: Pace, seconds: float = ANSWER) -> tuple[Server, list[Record]]:
        loop, records = VirtualLoop(), []
        monkeypatch.setattr(drive.time, "perf_counter", loop.time)
        server = Server(loop, seconds)
        vocabulary = Vocabulary(range(100), 0)
        made = Drive(server, vocabulary, pace, target="t", number=1, run="run", note=records.append)
        try:
            loop.run_until_complete(made.run(plans))
        finally:
            loop.close()
        return server, records

    return go


def starts(records: list[Record], session: str) -> list[float]:
    return [r.at for r in records if r.session == session]


def test_think_times_are_scaled_and_capped_between_starts(driven):
    _, records = driven([plan("a", [0, 3, 8, 100])], Pace(scale=0.5, cap=6))
    # Half of 3 is over before the answer is there, so the next turn follows at once.
    assert starts(records, "a") == [0, 2, 2 + 4, 2 + 4 + 6]


def test_think_times_after_an_answer_start_at_its_end(driven):
    _, records = driven([plan("a", [0, 3, 100], after_end=True)], Pace(scale=2, cap=10))
    assert starts(records, "a") == [0, 2 + 6, 8 + 2 + 10]


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_lanes_run_sessions_in_order_and_no_more_at_once(driven, concurrency):
    plans = [plan(f"s{i}", [0, 0]) for i in range(5)]
    server, records = driven(plans, Pace(concurrency=concurrency, salts="session"))
    assert server.most == concurrency
    assert len(records) == 10
    begun = list(dict.fromkeys(ask.salt for _, ask in server.asks))
    assert begun == [f"run s{i}" for i in range(5)]
    for i in range(5):
        assert [r.turn for r in records if r.session == f"s{i}"] == [1, 2]


def test_the_first_sessions_warm_up(driven):
    _, records = driven([plan(f"s{i}", [0, 0]) for i in range(4)], Pace(warm_up=2))
    assert {r.session for r in records if r.warm_up} == {"s0", "s1"}


@pytest.mark.parametrize(
    ("salts", "kinds"), [("none", {""}), ("lane", {"lane 0", "lane 1"}), ("session", {"s0", "s1", "s2"})]
)
def test_who_shares_prefixes(driven, salts, kinds):
    server, records = driven([plan(f"s{i}", [0]) for i in range(3)], Pace(concurrency=2, salts=salts))
    assert {ask.salt.removeprefix("run ") for _, ask in server.asks} == kinds
    # What could be reused follows: all but one token of what was sent with the same salt before.
    assert sum(r.ideal > 0 for r in records) == 3 - len(kinds)


def test_after_the_duration_nothing_is_sent_and_grace_ends_what_runs(driven):
    plans = [plan(f"s{i}", [0] * 3) for i in range(4)]
    server, records = driven(plans, Pace(concurrency=1, duration=5, grace=0.5))
    assert [at for at, _ in server.asks] == [0, 2, 4]
    assert [r.error for r in records] == ["", "", "cut"]
    assert records[-1].seconds == pytest.approx(1.5)
    _, patient = driven(plans, Pace(concurrency=1, duration=5, grace=3))
    assert [r.error for r in patient] == ["", "", ""]


def test_the_open_loop_starts_sessions_when_the_trace_says_as_far_as_lanes_are_free(driven):
    plans = [plan("a", [0], at=0), plan("b", [0], at=1), plan("c", [0], at=1.5), plan("d", [0], at=30)]
    _, records = driven(plans, Pace(concurrency=2, open_loop=True))
    assert {r.session: r.at for r in records} == {"a": 0, "b": 1, "c": 2, "d": 30}
    _, faster = driven(plans, Pace(concurrency=2, open_loop=True, scale=0.5))
    assert {r.session: r.at for r in faster}["d"] == 15


def test_answers_end_at_their_end_of_turn_unless_told_otherwise(driven):
    for beyond in (False, True):
        server, _ = driven([plan("a", [0])], Pace(beyond_eos=beyond))
        assert [ask.beyond_eos for _, ask in server.asks] == [beyond]
