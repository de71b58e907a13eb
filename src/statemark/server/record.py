"""What happened to a job, for logs and metrics: counts of tokens and times on a clock that only moves forward."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from statemark.engine.request import EngineRequest


@dataclass
class Record:
    """One job so far. Seconds; `begun` (its first step), `first_token` and `last_token` count from the arrival and are
    None until then.
    """

    requests: Sequence[EngineRequest]
    arrival: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    failed: bool = False
    choice_tokens: Counter[tuple[str, int]] = field(default_factory=Counter)  # written, by request and choice
    _last: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt_token_ids) for request in self.requests)

    def age(self) -> float:
        return time.perf_counter() - self.arrival

    def add(self, delta: Any) -> float | None:
        """Take in a delta; returns the seconds since the choice's last token, None with its first."""
        if delta.finish_reason is not None:
            self.finish_reasons.append(delta.finish_reason)
        if not delta.token_ids:
            return None
        now = time.perf_counter()
        key = (delta.request_id, delta.index)
        before, self._last[key] = self._last.get(key), now
        self.last_token = now - self.arrival
        if self.first_token is None:
            self.first_token = self.last_token
            self.begun = None if delta.begun is None else max(0.0, delta.begun - self.arrival)
        if before is None and delta.index == 0:
            self.cached_tokens += delta.num_cached_tokens
        self.output_tokens += len(delta.token_ids)
        self.choice_tokens[key] += len(delta.token_ids)
        return None if before is None else now - before


class Watch(Protocol):
    """Who is told about jobs, on the event loop."""

    def submitted(self, record: Record) -> None: ...
    def news(self, record: Record, delta: Any) -> None: ...
    def released(self, record: Record) -> None: ...
    def refused(self) -> None: ...


class Unwatched:
    """Nobody is told."""

    def submitted(self, record: Record) -> None: ...

    def news(self, record: Record, delta: Any) -> None:
        record.add(delta)

    def released(self, record: Record) -> None: ...
    def refused(self) -> None: ...
