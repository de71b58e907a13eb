"""Runs prefill and decode through the real engine and times them. Owns the method; knows no limits and no output.

Every round runs every cell once, so that a machine that slows down for a while slows all of them; the first round
warms up and is dropped. Nothing is ever cached between runs: every request says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from statemark.engine.core import Engine
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest, StepOutput
from statemark.errors import ConfigurationError, StatemarkError

# Decode starts behind a prompt this short, as other engines' own benchmarks do: the cost of attention stays small.
DECODE_PROMPT = 16


@dataclass(frozen=True)
class Settings:
    prefill: tuple[int, ...] = (512, 2048)
    decode: int = 64
    streams: tuple[int, ...] = (1, 8)
    repeats: int = 5

    def __post_init__(self) -> None:
        for name, values in (("prefill", self.prefill), ("streams", self.streams)):
            bad = [value for value in values if value < 1]
            if bad:
                raise ConfigurationError(f"{name} must be whole numbers of at least 1, got {bad[0]}")
        if self.decode < 1:
            raise ConfigurationError(f"decode must be at least 1 token, got {self.decode}")
        if self.repeats < 1:
            raise ConfigurationError(f"repeats must be at least 1, got {self.repeats}")
        if not self.prefill and not self.streams:
            raise ConfigurationError("nothing to measure", hint="give --prefill or --streams")

    @property
    def longest(self) -> int:
        """Tokens that the longest request of the run needs, prompt and answer together."""
        longest_prefill = max(self.prefill, default=0) + 1
        return max(longest_prefill, DECODE_PROMPT + 1 + self.decode if self.streams else 0)

    @property
    def most_streams(self) -> int:
        return max(self.streams, default=1)

    def cells(self) -> list[Cell]:
        prefill = [Cell("prefill", length, 1, 1) for length in self.prefill]
        return prefill + [Cell("decode", DECODE_PROMPT, 1 + self.decode, streams) for streams in self.streams]


@dataclass(frozen=True)
class Cell:
    """`streams` requests at once, each of `prompt` tokens, each answered with `output` tokens."""

    kind: str
    prompt: int
    output: int
    streams: int

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.prompt}"
        return f"decode, {self.streams} stream{'s' if self.streams > 1 else ''}"


@dataclass(frozen=True)
class Run:
    """`first_seconds`: from the request to its first token (the last stream's, where there are several);
    `rest_seconds`: from there to the last token; `rest_tokens`: what all streams produced in that time.
    """

    cell: Cell
    first_seconds: float
    rest_seconds: float
    rest_tokens: int

    @property
    def rate(self) -> float:
        """Tokens a second: of the prompt for prefill, of all streams' answers for decode."""
        if self.cell.kind == "prefill":
            return self.cell.prompt / self.first_seconds
        return self.rest_tokens / self.rest_seconds


def run_bench(
    engine: Engine,
    settings: Settings,
    *,
    vocab_size: int,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Cell, list[Run]]:
    """Every cell's runs, in order; the warm-up is not among them. `progress` gets (what, cells done, cells in all)."""
    cells = settings.cells()
    runs: dict[Cell, list[Run]] = {cell: [] for cell in cells}
    prompts = Prompts(vocab_size)
    for number in range(settings.repeats + 1):
        for place, cell in enumerate(cells):
            what = f"round {number} of {settings.repeats}" if number else "warm-up"
            progress(f"{what}, {cell.name},", number * len(cells) + place, len(cells) * (settings.repeats + 1))
            run = run_cell(engine, cell, prompts, clock)
            if number:
                runs[cell].append(run)
    return runs


def run_cell(engine: Engine, cell: Cell, prompts: Prompts, clock: Callable[[], float]) -> Run:
    requests = [prompts.request(cell) for _ in range(cell.streams)]
    begun = clock()
    for request in requests:
        engine.add_request(request)
    left = {request.request_id: cell.output for request in requests}
    silent = set(left)
    first = begun
    rest_tokens = 0
    while left:
        for output in engine.step():
            _check(cell, output)
            if not silent:
                rest_tokens += len(output.new_token_ids)
            left[output.request_id] -= len(output.new_token_ids)
            if output.finish_reason is not None and left.pop(output.request_id) != 0:
                raise StatemarkError(f"{cell.name}: a request ended early ({output.finish_reason})")
            if output.new_token_ids and output.request_id in silent:
                silent.discard(output.request_id)
                first = clock()
    return Run(cell, first - begun, clock() - first, rest_tokens)


def _check(cell: Cell, output: StepOutput) -> None:
    if output.error is not None:
        raise StatemarkError(f"{cell.name}: the engine gave up a request: {output.error}")
    if output.num_cached_tokens:
        raise StatemarkError(f"{cell.name}: {output.num_cached_tokens} tokens came from the cache, none should")


class Prompts:
    """Random prompts, the same in every run of the command, none like another."""

    def __init__(self, vocab_size: int) -> None:
        self._rng = np.random.default_rng(0)
        self._vocab_size = vocab_size
        self._made = 0

    def request(self, cell: Cell) -> EngineRequest:
        self._made += 1
        ids = self._rng.integers(0, self._vocab_size, cell.prompt)
        return EngineRequest(
            request_id=f"bench-{self._made}",
            prompt_token_ids=tuple(ids.tolist()),
            params=SamplingParams(temperature=0.0, max_tokens=cell.output, ignore_eos=True),
            use_cache=False,
        )
