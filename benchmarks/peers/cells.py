"""What is measured, and how each engine is asked for it. Pure: no processes, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from protocol import Job

# Decode starts behind a short prompt, as llama-bench's does behind none.
DECODE_PROMPT = 16


@dataclass(frozen=True)
class Cell:
    """`kind` prefill: one prompt of `tokens`. `kind` decode: `streams` prompts at once, `tokens` generated for each."""

    kind: str
    tokens: int
    streams: int = 1

    @property
    def name(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.tokens}"
        return f"decode, {self.streams} stream{'s' if self.streams > 1 else ''}"

    @property
    def longest(self) -> int:
        return self.tokens + 1 if self.kind == "prefill" else DECODE_PROMPT + 1 + self.tokens


def rate_of(cell: Cell, run: Callable[[Job], float], rng: random.Random, vocab_size: int) -> float:
    """Tokens a second of one engine for one cell. `run` returns the wall seconds of a job.

    Decode is the difference of two calls with prompts of the same length, one token and 1 + `tokens`: what a call costs
    beside decoding drops out, and both sides are timed from outside in the same way.
    """

    def prompts(length: int) -> list[list[int]]:
        return [[rng.randrange(vocab_size) for _ in range(length)] for _ in range(cell.streams)]

    if cell.kind == "prefill":
        return cell.tokens / run(Job(prompts(cell.tokens), 1))
    short = run(Job(prompts(DECODE_PROMPT), 1))
    long = run(Job(prompts(DECODE_PROMPT), 1 + cell.tokens))
    return cell.streams * cell.tokens / (long - short)


def order_of_round(names: Sequence[str], number: int) -> list[str]:
    """Every round starts with another engine, so that none always runs on the coolest machine."""
    shift = number % len(names)
    return [*names[shift:], *names[:shift]]
