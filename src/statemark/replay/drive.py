"""Sends a workload to one server: sessions in order, think times, lanes, warm-up, an end in time. Owns the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from statemark.client import Ask, Reply, Session
from statemark.errors import ServerError
from statemark.replay.ideal import Ideal
from statemark.replay.records import Record
from statemark.replay.workload import SessionPlan, Turn, Vocabulary


@dataclass(frozen=True)
class Pace:
    """`concurrency`: sessions at once, a lane each. Think times are multiplied by `scale` and at most `cap` seconds.

    `open_loop`: sessions start when the trace says, not when a lane is free. `duration`: seconds after which nothing
    new is sent; what runs then has `grace` seconds. `warm_up`: sessions whose figures don't count. `salts`: lane (a
    lane's sessions share prefixes), session, or none (all share).
    """

    concurrency: int = 4
    scale: float = 1.0
    cap: float = 10.0
    open_loop: bool = False
    duration: float | None = None
    grace: float = 30.0
    warm_up: int = 0
    salts: str = "none"
    beyond_eos: bool = False


class Drive:
    """One round on one server. `note` is given every record as it is made. `after`: seconds of this round that an
    earlier, broken run has taken."""

    def __init__(
        self,
        session: Session,
        vocabulary: Vocabulary,
        pace: Pace,
        *,
        target: str,
        number: int,
        run: str,
        note: Callable[[Record], None],
        after: float = 0.0,
    ) -> None:
        self.session, self.vocabulary, self.pace = session, vocabulary, pace
        self.target, self.number, self.run_name, self.note = target, number, run, note
        self.after = after
        self._ideal = Ideal()
        self._start = 0.0

    async def run(self, plans: Sequence[SessionPlan]) -> None:
        """All sessions, or as many as the duration allows."""
        self._start = time.perf_counter()
        waiting = list(enumerate(plans))[::-1]

        async def lane(number: int) -> None:
            while waiting and not self._over():
                index, plan = waiting.pop()
                if self.pace.open_loop:
                    await self._pause(self._start + plan.at * self.pace.scale - time.perf_counter())
                await self._conversation(plan, index, number)

        await asyncio.gather(*(lane(i) for i in range(min(self.pace.concurrency, max(1, len(waiting))))))

    async def _conversation(self, plan: SessionPlan, index: int, lane: int) -> None:
        begun = ended = time.perf_counter()
        for number, turn in enumerate(plan.turns, 1):
            if number > 1:
                since = ended if turn.after_end else begun
                await self._pause(since + min(self.pace.cap, turn.wait * self.pace.scale) - time.perf_counter())
            if self._over():
                return
            begun = time.perf_counter()
            last = number == len(plan.turns)
            await self._one(plan, number, turn, lane, warm_up=index < self.pace.warm_up, last=last)
            ended = time.perf_counter()

    async def _one(self, plan: SessionPlan, number: int, turn: Turn, lane: int, *, warm_up: bool, last: bool) -> None:
        salt = {"lane": f"lane {lane}", "session": plan.name, "none": ""}[self.pace.salts]
        ideal = self._ideal.cached(salt, turn.tokens)
        ask = Ask(
            prompt=[] if turn.messages else self.vocabulary.ids(turn.tokens),
            messages=turn.messages,
            max_tokens=turn.output,
            salt=f"{self.run_name} {salt}",
            beyond_eos=self.pace.beyond_eos,
        )
        reply, error, words = Reply(sent=time.perf_counter()), "", ""
        try:
            await asyncio.wait_for(self._read(ask, reply), self._time_left())
        except ServerError as failure:
            error, words = failure.kind, failure.message
        except TimeoutError:
            error, words = "cut", "the run's time was over"
        if turn.messages and reply.prompt_tokens:  # their tokens are the server's; until now it was characters
            ideal = ideal * reply.prompt_tokens // len(turn.tokens)
        now = time.perf_counter()
        arrivals = [t - reply.sent for t, count in reply.arrivals for _ in range(count)]
        self.note(
            Record(
                target=self.target,
                round=self.number,
                session=plan.name,
                turn=number,
                at=self.after + reply.sent - self._start,
                prompt=reply.prompt_tokens or len(turn.tokens),
                output=reply.completion_tokens or len(arrivals),
                cached=reply.cached,
                ideal=ideal,
                arrivals=arrivals,
                seconds=(reply.ended or now) - reply.sent,
                finish="session done" if last else reply.finish or "",
                error=error,
                words=words,
                warm_up=warm_up,
            )
        )

    async def _read(self, ask: Ask, reply: Reply) -> None:
        async for _ in self.session.stream(ask, reply):
            pass

    def _over(self) -> bool:
        limit = self.pace.duration
        return limit is not None and time.perf_counter() - self._start >= limit

    def _time_left(self) -> float | None:
        if self.pace.duration is None:
            return None
        return max(0.01, self._start + self.pace.duration + self.pace.grace - time.perf_counter())

    async def _pause(self, seconds: float) -> None:
        if self.pace.duration is not None:
            seconds = min(seconds, self._start + self.pace.duration - time.perf_counter())
        if seconds > 0:
            await asyncio.sleep(seconds)
