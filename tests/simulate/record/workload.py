"""The workload that real servers are asked and the simulator is held against: 200 requests in waves.

Chats that go on with the server's own answers, prompts asked again, edited, and short ones, on a few shared heads.
Plain data, standard library only: imported both where a server is installed and where the tests run.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass
from typing import Any

REQUESTS = 200
WAVE_SECONDS = 1_000_000.0  # apart: a wave is over before the next begins

Parts = list[tuple[str, int]]


@dataclass(frozen=True)
class Ask:
    """One request. `wave`: those of one wave are sent together."""

    number: int
    wave: int
    parts: Parts
    output: int

    @property
    def answer(self) -> str:
        return f"answer {self.number}"

    def as_trace(self) -> dict[str, Any]:
        """The request in the trace format of `statemark simulate`."""
        return {
            "at": self.wave * WAVE_SECONDS,
            "parts": [list(p) for p in self.parts],
            "output": self.output,
            "answer": self.answer,
        }


def workload(seed: int, longest: int, largest_wave: int) -> list[Ask]:
    """`longest`: no prompt has more tokens. A request only goes on from requests of earlier waves."""
    draw = random.Random(seed)
    heads = [(f"head {i}", draw.randrange(longest // 8, longest // 2)) for i in range(4)]
    asks: list[Ask] = []
    wave = 0
    while len(asks) < REQUESTS:
        earlier = [a for a in asks if a.wave < wave]
        for _ in range(min(draw.randrange(1, largest_wave + 1), REQUESTS - len(asks))):
            number = len(asks)
            parts = _parts(draw, number, earlier, heads, longest)
            asks.append(Ask(number, wave, parts, draw.randrange(1, 12)))
        wave += 1
    return asks


def _parts(draw: random.Random, number: int, earlier: list[Ask], heads: Parts, longest: int) -> Parts:
    kind = draw.choice(["head", "head", "alone", "again", "on", "on", "on", "edit"]) if earlier else "head"
    own = (f"own {number}", draw.randrange(1, longest // 5))
    if kind == "alone":
        return [(own[0], draw.randrange(1, longest))]
    if kind == "head":
        return [draw.choice(heads), own]
    before = draw.choice(earlier[-20:])
    if kind == "again":
        return list(before.parts)
    if kind == "edit":
        name, size = before.parts[-1]
        if size > 2 and not name.startswith("answer"):
            return [*before.parts[:-1], (name, draw.randrange(1, size)), own]
    grown = [*before.parts, (before.answer, before.output), own]
    return grown if sum(n for _, n in grown) <= longest else [heads[0], own]


def tokens(parts: Parts, answers: dict[str, list[int]], vocabulary: int = 500) -> list[int]:
    """Token ids: those of a name are drawn from its hash, an answer's are what the server has said."""
    out: list[int] = []
    for name, length in parts:
        if name in answers:
            said = answers[name]
            assert len(said) == length, f"{name} has {len(said)} tokens, the workload says {length}"
            out += said
        else:
            rng = random.Random(zlib.crc32(name.encode()))
            out += [rng.randrange(2, vocabulary) for _ in range(length)]
    return out
