"""The method of `statemark bench`: what is run, what is timed, and that wrong runs are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statemark.bench.measure import DECODE_PROMPT, Cell, Prompts, Run, Settings, run_bench, run_cell
from statemark.engine.request import EngineRequest, StepOutput
from statemark.errors import ConfigurationError, StatemarkError


class ToyEngine:
    """One step prefills every new request; each further step gives each of them one token. Time passes in steps.

    Its clock counts 1 for a step and another `per_token` for each prompt token, so every rate can be said beforehand.
    """

    def __init__(self, *, per_token: float = 0.0, cached: int = 0, end_at: int | None = None, error: str | None = None):
        self.now = 0.0
        self.per_token = per_token
        self.cached = cached
        self.end_at = end_at
        self.error = error
        self.requests: list[EngineRequest] = []
        self.live: dict[str, tuple[EngineRequest, int]] = {}

    def clock(self) -> float:
        return self.now

    def add_request(self, request: EngineRequest) -> None:
        self.requests.append(request)
        self.live[request.request_id] = (request, 0)

    def step(self) -> list[StepOutput]:
        self.now += 1.0
        outputs = []
        for name, (request, given) in list(self.live.items()):
            if given == 0:
                self.now += self.per_token * len(request.prompt_token_ids)
            output = StepOutput(name, 0, new_token_ids=[7], num_cached_tokens=self.cached, error=self.error)
            if given + 1 == (self.end_at or request.params.max_tokens):
                output.finish_reason = "length"
                del self.live[name]
            else:
                self.live[name] = (request, given + 1)
            outputs.append(output)
        return outputs


def run(engine: ToyEngine, cell: Cell) -> Run:
    return run_cell(engine, cell, Prompts(100), engine.clock)  # type: ignore[arg-type]


def test_prefill_is_timed_from_the_request_to_its_first_token() -> None:
    done = run(ToyEngine(per_token=0.5), Cell("prefill", 100, 1, 1))
    assert done.first_seconds == 51.0
    assert done.rate == pytest.approx(100 / 51)


def test_decode_leaves_the_prefill_out() -> None:
    done = run(ToyEngine(per_token=0.5), Cell("decode", 16, 9, 1))
    assert (done.rest_tokens, done.rest_seconds, done.rate) == (8, 8.0, 1.0)


def test_streams_decode_together() -> None:
    done = run(ToyEngine(), Cell("decode", 16, 5, 3))
    assert (done.rest_tokens, done.rest_seconds, done.rate) == (12, 4.0, 3.0)


class LateEngine(ToyEngine):
    """The second request is prefilled only after the first has given three tokens."""

    def step(self) -> list[StepOutput]:
        late = list(self.live)[1:] if self.now < 3 else []
        held = {name: self.live.pop(name) for name in late}
        outputs = super().step()
        self.live |= held
        return outputs


def test_tokens_before_the_last_stream_has_started_do_not_count() -> None:
    engine = LateEngine()
    done = run(engine, Cell("decode", 16, 6, 2))
    # The clock for decode starts at step 4, when the second stream gives its first token and the first its fourth.
    assert done.first_seconds == 4.0
    assert (done.rest_tokens, done.rest_seconds) == (2 + 5, 5.0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [({"cached": 5}, "5 tokens came from the cache"), ({"end_at": 2}, "ended early"), ({"error": "broken"}, "broken")],
)
def test_a_run_that_did_other_work_than_asked_is_refused(fault: dict[str, object], words: str) -> None:
    with pytest.raises(StatemarkError, match=words):
        run(ToyEngine(**fault), Cell("decode", 16, 4, 1))  # type: ignore[arg-type]


def test_rounds_take_turns_and_the_first_is_dropped() -> None:
    engine = ToyEngine()
    settings = Settings(prefill=(4, 8), decode=2, streams=(1, 2), repeats=3)
    said: list[tuple[str, int, int]] = []
    runs = run_bench(
        engine,  # type: ignore[arg-type]
        settings,
        vocab_size=100,
        progress=lambda *news: said.append(news),
        clock=engine.clock,
    )
    assert [cell.name for cell in runs] == ["prefill 4", "prefill 8", "decode, 1 stream", "decode, 2 streams"]
    assert {len(found) for found in runs.values()} == {3}
    one_round = [4, 8, DECODE_PROMPT, DECODE_PROMPT, DECODE_PROMPT]
    assert [len(request.prompt_token_ids) for request in engine.requests] == one_round * 4
    assert said[0] == ("warm-up, prefill 4,", 0, 16)
    assert said[-1] == ("round 3 of 3, decode, 2 streams,", 15, 16)


def test_no_request_uses_the_cache_or_repeats_a_prompt() -> None:
    prompts = Prompts(1000)
    made = [prompts.request(Cell("prefill", 32, 1, 1)) for _ in range(20)]
    assert not any(request.use_cache for request in made)
    assert all(request.params.ignore_eos and request.params.greedy for request in made)
    assert len({request.prompt_token_ids for request in made}) == len({request.request_id for request in made}) == 20
    assert {t for request in made for t in request.prompt_token_ids} <= set(range(1000))


def test_prompts_are_the_same_in_every_run() -> None:
    cell = Cell("prefill", 32, 1, 1)
    assert Prompts(1000).request(cell) == Prompts(1000).request(cell)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prefill": (0,)}, "prefill must be .* got 0"),
        ({"streams": (2, -1)}, "streams must be .* got -1"),
        ({"decode": 0}, "decode must be at least 1 token, got 0"),
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"prefill": (), "streams": ()}, "nothing to measure"),
    ],
)
def test_settings_that_can_not_work(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        replace(Settings(), **change)


def test_the_engine_is_asked_for_what_the_longest_request_needs() -> None:
    assert Settings(prefill=(512, 2048), decode=64).longest == 2049
    assert Settings(prefill=(), decode=64, streams=(1, 4)).longest == DECODE_PROMPT + 65
    assert Settings(prefill=(), decode=64, streams=(1, 4)).most_streams == 4
