"""Asks single requests for the cells: salts, references, cached tokens, what it cost. Owns I/O; judges nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from statemark.client import Ask, Reply, Session
from statemark.errors import ServerError
from statemark.probe.answer import TOP, Answer, answer_of
from statemark.probe.documents import Unit, prompt_of


@dataclass(frozen=True)
class Asked:
    """`cached`: tokens reused, None where the server doesn't say; `ids`: generated, empty where it doesn't tell."""

    answer: Answer
    cached: int | None
    prompt: int
    ids: list[int]


@dataclass
class Cost:
    """What was asked of the server so far. `total`: prompt tokens that are expected in all; 0: not known."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    seconds: float = 0.0

    def figures(self) -> dict[str, Any]:
        return {**vars(self), "seconds": round(self.seconds, 1)}


class Asker(Protocol):
    """One request to the server, or what stands for it in an estimate."""

    cost: Cost

    async def ask(self, units: Sequence[Unit], salt: str, *, cache: bool = True) -> Asked: ...
    async def company(self, prompts: Sequence[Sequence[Unit]], salt: str, tokens: int) -> Company: ...


class Company(Protocol):
    """Other requests that run meanwhile. `end` stops them and says what kept them from running until then."""

    async def end(self) -> str: ...


class Bench:
    """An `Asker` over a session. `counting`: "usage" or "metrics", where cached tokens are read from."""

    def __init__(self, session: Session, *, max_tokens: int, beyond_eos: bool, run: str) -> None:
        self.session = session
        self.max_tokens = max_tokens
        self.beyond_eos = beyond_eos
        self.counting = "usage"
        self.cost = Cost()
        self.run = run  # what an earlier probe of this server has left must not be met again

    @property
    def can_isolate(self) -> bool:
        return self.session.target.salts or self.session.target.uncached

    async def ask(self, units: Sequence[Unit], salt: str, *, cache: bool = True) -> Asked:
        before = await self.session.hits() if self.counting == "metrics" else None
        start = time.perf_counter()
        reply = await self.session.ask(
            Ask(
                prompt=prompt_of(units),
                max_tokens=self.max_tokens,
                salt=f"{self.run} {salt}",
                logprobs=TOP,
                beyond_eos=self.beyond_eos,
                cache=cache,
                want_ids=True,
            )
        )
        self._count(reply, time.perf_counter() - start)
        cached = reply.cached
        if before is not None:
            cached = round((await self.session.hits() or before) - before)
        if not reply.tokens:
            raise ServerError(
                "protocol",
                f"{self.session.url} gives no log-probabilities",
                hint="the probe compares nothing else: allow them (vLLM: --max-logprobs 20)",
            )
        return Asked(answer_of(reply.tokens), cached, reply.prompt_tokens or len(units), reply.ids)

    async def company(self, prompts: Sequence[Sequence[Unit]], salt: str, tokens: int) -> Company:
        from statemark.probe.company import start_company

        asks = [
            Ask(prompt=prompt_of(p), max_tokens=tokens, salt=f"{self.run} {salt} {i}", beyond_eos=True)
            for i, p in enumerate(prompts)
        ]
        self.cost.requests += len(asks)
        self.cost.prompt_tokens += sum(map(len, prompts))
        return await start_company(self.session, asks, wait=tokens > 1)

    def _count(self, reply: Reply, seconds: float) -> None:
        self.cost.requests += 1
        self.cost.prompt_tokens += reply.prompt_tokens
        self.cost.completion_tokens += reply.completion_tokens
        self.cost.cached_tokens += reply.cached or 0
        self.cost.seconds += seconds
