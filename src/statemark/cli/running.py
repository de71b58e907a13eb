"""Runs requests to their end in this thread, for commands without a server, and times them. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click

from statemark.engine.outputs import TextDelta
from statemark.engine.request import EngineRequest
from statemark.server.answer import Answer
from statemark.server.served import ServedModel


@dataclass
class Timing:
    """Seconds from the start to the first token and to the end, and the tokens that came."""

    first: float = 0.0
    total: float = 0.0
    tokens: int = 0
    at_first: int = 0  # tokens that came with the first step that gave any

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first; None where nothing came after it."""
        later = self.tokens - self.at_first
        return later / (self.total - self.first) if later > 0 and self.total > self.first else None

    def words(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:.1f} tok/s"
        return f"first token {self.first:.2f} s{rate}"


def run_requests(
    model: ServedModel, requests: Sequence[EngineRequest], on_delta: Callable[[TextDelta], None] = lambda delta: None
) -> tuple[Answer, Timing]:
    """All requests together. However it ends - an interrupt too - the engine holds nothing of them afterwards."""
    answer, timing = Answer(requests), Timing()
    start = time.perf_counter()
    try:
        for request in requests:
            model.add(request)
        while model.has_work():
            came = 0
            for delta in model.step():
                if delta.error is not None:
                    raise click.ClickException(f"the engine failed: {delta.error}")
                answer.add(delta)
                on_delta(delta)
                came += len(delta.token_ids)
            if came and not timing.tokens:
                timing.first, timing.at_first = time.perf_counter() - start, came
            timing.tokens += came
    except BaseException as error:
        for request in requests:
            model.abort(request.request_id)
        if isinstance(error, KeyboardInterrupt):  # what was written until then is still of use
            raise InterruptedAnswer(answer, _ended(timing, start)) from None
        raise
    return answer, _ended(timing, start)


class InterruptedAnswer(KeyboardInterrupt):
    """Ctrl-C while an answer was written; carries what there is of it."""

    def __init__(self, answer: Answer, timing: Timing) -> None:
        super().__init__()
        self.answer = answer
        self.timing = timing


def _ended(timing: Timing, start: float) -> Timing:
    timing.total = time.perf_counter() - start
    return timing
