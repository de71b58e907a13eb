"""What is replayed: sessions of requests whose prompts are abstract tokens, and how those become a server's own.

An abstract token is any integer; equal ones become equal token ids. So a trace's shared prefixes stay shared, to the
token, whatever the model's vocabulary is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Abstract = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Turn:
    """One request. `wait`: seconds between the start of the last request of the session and this one, or, with
    `after_end`, between its end and this one. `messages`: sent as chat instead of `tokens` where a log has them.
    """

    tokens: Abstract
    output: int
    wait: float = 0.0
    after_end: bool = False
    messages: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class SessionPlan:
    """Requests that follow each other. `at`: seconds after the trace's beginning."""

    name: str
    turns: tuple[Turn, ...]
    at: float = 0.0


class Vocabulary:
    """Abstract tokens as ids from `pool`, scattered by `seed`."""

    def __init__(self, pool: Sequence[int], seed: int) -> None:
        self.pool = np.array(sorted(set(pool)), dtype=np.int64)
        self._offset = np.uint64((2 * seed + 1) * 0xD1B54A32D192ED03 & (1 << 64) - 1)

    def ids(self, tokens: Abstract) -> list[int]:
        h = tokens.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + self._offset
        h ^= h >> np.uint64(29)
        h *= np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(32)
        return [int(i) for i in self.pool[(h % np.uint64(len(self.pool))).astype(np.int64)]]


def fitted(sessions: Sequence[SessionPlan], longest: int, output_limit: int | None) -> tuple[list[SessionPlan], int]:
    """Without the requests that a context of `longest` tokens can't hold, and how many those are.

    A session ends before its first such request: what follows it is longer still.
    """
    kept, dropped = [], 0
    for session in sessions:
        turns = []
        for turn in session.turns:
            output = min(turn.output, output_limit) if output_limit else turn.output
            if len(turn.tokens) + output > longest:
                break
            turns.append(Turn(turn.tokens, output, turn.wait, turn.after_end, turn.messages))
        dropped += len(session.turns) - len(turns)
        if turns:
            kept.append(SessionPlan(session.name, tuple(turns), session.at))
    return kept, dropped
