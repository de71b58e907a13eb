"""Statemark's rule against Statemark's engine: its scheduler and cache on real token ids, request by request."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.simulate.cost import Cost
from statemark.simulate.endless import Endless
from statemark.simulate.executor import SimulatedExecutor
from statemark.simulate.marks_backend import EndlessBackend, MarksBackend, spell
from statemark.simulate.server import Limits, Outcome, Server
from statemark.simulate.soak import simulated_engine
from statemark.simulate.workload import Names, Request
from tests.simulate.record.workload import workload

LONGEST = 3000
PAGE, SLOT = 1 << 10, 96 << 10  # in the proportion of a real model: a mark costs as much as 1,536 tokens
SHAPES = [(1, 512, 8), (6, 128, 4), (24, 512, 8), (24, 2048, 24), (24, 40, 24)]  # requests a wave, budget, sequences


def requests_of(seed: int, wave: int, *, turns: bool, talk: int = 1) -> list[Request]:
    """Waves of new prompts, repeats, edits and chats that go on; with `turns`, some say where their messages end.

    `talk`: times as many tokens of answer.
    """
    names = Names()
    made = []
    for ask in workload(seed, LONGEST, wave):
        nodes, ends = names.spans([tuple(p) for p in ask.parts])
        answer = names.child(nodes[-1], ends[-1], ask.answer)
        inner = tuple(ends[:-1]) if turns and ask.number % 3 else ()
        output = min(ask.output * talk, 4000 - ends[-1])
        made.append(Request(ask.number, ask.wave * 1e6, nodes, ends[-1], output, answer, ends=ends, turns=inner))
    return made


class Said:
    """A sampler that says what the trace says."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers
        self._next: Counter[int] = Counter()

    def sample(self, logits: Any, states: list[Any]) -> list[Any]:
        found = []
        for state in states:
            number = state.params.seed
            token = int(self._answers[number][self._next[number]])
            self._next[number] += 1
            found.append(SimpleNamespace(error=None, token_id=token, logprobs=None))
        return found


class Rows(SimulatedExecutor):
    def logits(self, rows: Any) -> Any:
        return np.zeros((len(rows), 1), dtype=np.float32)


def asked(requests: list[Request], budget: int, seqs: int, memory: int) -> tuple[Any, dict[int, int]]:
    """The engine after all waves, one after the other, and what each request took from its cache."""
    executor = Rows(vocab_size=1 << 31, page_bytes=PAGE, slot_bytes=SLOT)
    engine = simulated_engine(executor, memory, seqs=seqs, budget=budget, max_model_len=4096)
    texts = [spell(r, r.prompt + r.output) for r in requests]
    engine._sampler = Said([t[r.prompt :] for t, r in zip(texts, requests, strict=True)])  # type: ignore[assignment]
    cached: dict[int, int] = {}
    for wave in sorted({r.at for r in requests}):
        for r in (r for r in requests if r.at == wave):
            params = SamplingParams(temperature=0.0, max_tokens=r.output, seed=r.number, ignore_eos=True)
            prompt = tuple(texts[r.number][: r.prompt].tolist())
            engine.add_request(
                EngineRequest(request_id=str(r.number), prompt_token_ids=prompt, params=params, turn_positions=r.turns)
            )
        while engine.has_work():
            for output in engine.step():
                assert output.error is None
                cached[int(output.request_id)] = output.num_cached_tokens
    return engine, cached


def simulated(requests: list[Request], budget: int, seqs: int) -> tuple[Outcome, EndlessBackend]:
    backend = EndlessBackend(PAGE, SLOT)
    return Server(backend, Cost(), Limits(step=budget, requests=seqs)).run(requests), backend


@pytest.mark.parametrize(("wave", "budget", "seqs"), SHAPES)
@pytest.mark.parametrize("turns", [False, True])
def test_without_a_limit_every_count_is_the_engines(wave: int, budget: int, seqs: int, turns: bool) -> None:
    requests = requests_of(wave + budget, wave, turns=turns)
    engine, cached = asked(requests, budget, seqs, 1 << 50)
    outcome, backend = simulated(requests, budget, seqs)
    assert outcome.hits == cached
    assert outcome.steps == engine.steps
    assert sum(cached.values()) > 0.2 * sum(r.prompt for r in requests)
    assert engine.stats().get("marks_evicted", 0) == 0
    assert marks(backend.cache) == sorted(m.position for m in engine.cache.index.marks())


@pytest.mark.parametrize(("wave", "budget", "seqs"), SHAPES)
@pytest.mark.parametrize("slots", [3, 20])
def test_with_a_memory_limit_every_count_is_the_engines(wave: int, budget: int, seqs: int, slots: int) -> None:
    """From a cache that hardly runs one request to one that evicts now and then."""
    held_to_the_engine(requests_of(wave + slots, wave, turns=True), budget, seqs, 256 * PAGE + slots * SLOT)


@pytest.mark.parametrize(("wave", "budget", "seqs"), SHAPES[1:4])
def test_long_answers_push_each_other_out_as_in_the_engine(wave: int, budget: int, seqs: int) -> None:
    requests = requests_of(wave + 3, wave, turns=True, talk=40)
    assert held_to_the_engine(requests, budget, seqs, 256 * PAGE + 3 * SLOT)["preemptions"] > 0


def held_to_the_engine(requests: list[Request], budget: int, seqs: int, memory: int) -> dict[str, int]:
    engine, cached = asked(requests, budget, seqs, memory)
    backend = MarksBackend(PAGE, SLOT, memory)
    outcome = Server(backend, Cost(), Limits(step=budget, requests=seqs)).run(requests)
    counters, seen = backend.cache.counters, engine.stats()
    assert outcome.hits == cached
    assert (outcome.steps, outcome.preempted) == (engine.steps, seen.get("preemptions", 0))
    for name in ("marks_published", "marks_evicted", "marks_without_room", "tokens_reused"):
        assert counters[name] == seen.get(name, 0), name
    backend.cache.check_integrity([])
    assert seen["marks_evicted"] > 0
    return seen


def marks(cache: Endless) -> list[int]:
    found: list[int] = []
    edges = list(cache._roots.values())
    while edges:
        edge = edges.pop()
        assert list(edge.marks) == sorted(set(edge.marks))
        found += edge.marks
        edges += (edge.children or {}).values()
    return sorted(found)


def test_a_fault_in_the_tree_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks that are found a page too early, as if nobody looked at tokens: counts differ."""
    real = Endless.lookup
    monkeypatch.setattr(Endless, "lookup", lambda self, request, known: real(self, request, known - 16))
    requests = requests_of(3, 6, turns=False)
    _, cached = asked(requests, 512, 8, 1 << 50)
    assert simulated(requests, 512, 8)[0].hits != cached
