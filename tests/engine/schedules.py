"""Schedules for contract 1: who asks what, when, in which chunks, in whose company, and with how much memory.

`mismatches` runs one schedule and compares every request that was answered to the end with the oracle: the same
request alone, nothing cached, one token a step. Used with the toy executor and with real kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from statemark.engine.core import Engine
from statemark.engine.request import EngineRequest
from tests.engine.harness import request, step

# Prompts are made of these, so that they share prefixes that end on, before and after a page's end.
BLOCKS = ((5,), (7, 11, 13), tuple(range(20, 35)), (9,) * 16, tuple(range(40, 57)), (3, 4) * 20)

PARAMS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 1},
    {"max_tokens": 6},
    {"max_tokens": 5, "temperature": 1.0, "seed": 7},
    {"max_tokens": 5, "temperature": 0.8, "top_p": 0.9, "seed": 8, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"max_tokens": 3, "prompt_logprobs": 2},
    {"max_tokens": 14},
    {"max_tokens": 12, "temperature": 1.0, "seed": 9, "frequency_penalty": 0.5},
)


@dataclass(frozen=True)
class Arrival:
    """A request that comes before step `at`; `gone` steps later its client hangs up (None: it stays)."""

    at: int
    prompt: tuple[int, ...]
    turns: tuple[int, ...]
    params: int
    salt: str
    use_cache: bool
    gone: int | None

    def request(self, name: str) -> EngineRequest:
        return request(
            name, self.prompt, turns=self.turns, salt=self.salt, use_cache=self.use_cache, **PARAMS[self.params]
        )


@dataclass(frozen=True)
class Schedule:
    arrivals: tuple[Arrival, ...]
    budget: int
    seqs: int
    caching: bool
    spare_pages: int
    spare_slots: int
    threads: int
    drafts: int = 0


class Guesses:
    """Drafts that are mostly right: the oracle's next tokens, some of them replaced."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._answers = answers
        self.made = 0

    def __call__(self, tokens: Any, most: int) -> Any:
        known = tuple(tokens.tolist())
        for prompt, answer in self._answers.items():
            given = len(known) - len(prompt)
            if given >= 0 and known == (*prompt, *answer[:given]):
                guesses = np.array(answer[given : given + most], dtype=np.int32)
                if len(guesses):
                    self.made += 1
                    wrong = (len(known) * 7 + self.made) % 8  # beyond the guesses: all of them are right
                    guesses[wrong : wrong + 1] = 0
                return guesses
        return tokens[:0]


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    prompt = sum(draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4)), ())
    turns = draw(st.lists(st.integers(1, len(prompt)), max_size=3))
    return Arrival(
        at=draw(st.integers(0, 12)),
        prompt=prompt,
        turns=tuple(sorted(turns)),
        params=draw(st.integers(0, len(PARAMS) - 1)),
        salt=draw(st.sampled_from(["", "", "", "other"])),
        use_cache=draw(st.sampled_from([True, True, True, False])),
        gone=draw(st.one_of(st.none(), st.none(), st.integers(0, 5))),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    seqs = draw(st.integers(1, 4))
    return Schedule(
        arrivals=tuple(draw(st.lists(arrivals(), min_size=2, max_size=7))),
        budget=draw(st.sampled_from([seqs, seqs + 1, 7, 16, 17, 64, 512])),
        seqs=seqs,
        caching=draw(st.sampled_from([True, True, True, False])),
        spare_pages=draw(st.sampled_from([0, 1, 4, 200])),
        spare_slots=draw(st.sampled_from([0, 1, 3, 50])),
        threads=draw(st.integers(1, 2)),
        drafts=draw(st.sampled_from([0, 0, 1, 2, 5])),
    )


def mismatches(
    schedule: Schedule, make: Callable[..., Engine], page: int, slot: int, oracle: Callable[[EngineRequest], Any]
) -> list[str]:
    """What differs from the oracle, in words; empty when everything is exact.

    `make(threads, **engine options)` builds an engine; `page` and `slot` are the executor's bytes, so that the budget
    can be the least that holds the largest request alone, plus what the schedule spares.
    """
    names = {f"r{i}": a for i, a in enumerate(schedule.arrivals)}
    longest = max(len(a.prompt) + PARAMS[a.params]["max_tokens"] for a in schedule.arrivals)
    pages = -(-longest // 16) + schedule.spare_pages
    engine = make(
        schedule.threads,
        cache_bytes=pages * page + (1 + schedule.spare_slots) * slot,
        max_num_batched_tokens=max(schedule.budget, schedule.seqs),
        max_num_seqs=schedule.seqs,
        enable_prefix_caching=schedule.caching,
        max_model_len=longest,
        num_speculative_tokens=schedule.drafts,
    )
    if schedule.drafts:
        requests = [arrival.request(name) for name, arrival in names.items()]
        engine.scheduler.guess = Guesses({r.prompt_token_ids: oracle(r).tokens for r in requests})
    seen: dict[tuple[str, int], Any] = {}
    gone: set[str] = set()
    now = 0
    while now <= 12 or engine.has_work():
        for name, arrival in names.items():
            if arrival.at == now:
                engine.add_request(arrival.request(name))
            if arrival.gone is not None and arrival.at + arrival.gone == now:
                engine.abort(name)
                gone.add(name)
        if engine.has_work():
            step(engine, seen)
        now += 1
        assert now < 5000, "the engine goes round in circles"
        assert engine.cache.budget.committed_bytes <= engine.cache.budget.total
    wrong = []
    for name, arrival in names.items():
        got = seen.get((name, 0))
        if name in gone and (got is None or got.finish is None):
            continue
        right = oracle(arrival.request(name))
        if got is None or got.finish != right.finish or got.digest() != right.digest():
            wrong.append(f"{name}: {got and got.tokens} instead of {right.tokens}, {got and got.cached} cached")
        elif got.prompt_logprobs != right.prompt_logprobs:
            wrong.append(f"{name}: log-probabilities of the prompt differ")
    engine.cache.reset()
    assert engine.cache.budget.used_bytes == 0, "something leaked"
    return wrong


def busy(salt: str = "") -> Schedule:
    """A schedule in which marks inside pages are used, in company: what the planted faults are shown on."""
    shared = BLOCKS[2] + BLOCKS[5] + BLOCKS[1]
    made = [
        Arrival(
            at=3 * i,
            prompt=shared + BLOCKS[i % 3] + (60 + i,),
            turns=(len(shared),),
            params=1,
            salt=salt,
            use_cache=True,
            gone=None,
        )
        for i in range(4)
    ]
    again = [Arrival(12, a.prompt, a.turns, 1, salt, True, None) for a in made[:2]]
    return Schedule((*made, *again), budget=64, seqs=4, caching=True, spare_pages=200, spare_slots=50, threads=1)
