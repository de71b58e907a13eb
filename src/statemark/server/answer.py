"""Gathers a job's deltas into whole choices and counts tokens. Knows no response format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from statemark.cache import Explanation
from statemark.engine.outputs import TextDelta
from statemark.engine.request import EngineRequest, TokenLogprobs
from statemark.server.job import Job

if TYPE_CHECKING:  # the command line uses this module without a server
    from statemark.server.protocol import StreamOptions


@dataclass
class Choice:
    """One choice so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    _pieces: list[tuple[int, int]] = field(default_factory=list)  # characters and tokens before each delta

    def add(self, delta: TextDelta) -> None:
        self._pieces.append((len(self.text), len(self.token_ids)))
        self.text += delta.text
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs or ())
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def tokens_of(self, chars: int) -> int:
        """Tokens that the first `chars` characters took."""
        later = bisect_left(self._pieces, chars, key=lambda piece: piece[0])
        return self._pieces[later][1] if later < len(self._pieces) else len(self.token_ids) if chars else 0


class StreamUsage:
    """What a stream's frames say about usage: nothing, null until the last frame, or the count so far."""

    def __init__(self, options: StreamOptions | None, count: Callable[[], dict[str, Any]]) -> None:
        self.wanted = options is not None and options.include_usage
        self._each = options is not None and options.continuous_usage_stats
        self._count = count

    def now(self) -> dict[str, Any]:
        if self._each:
            return {"usage": self._count()}
        return {"usage": None} if self.wanted else {}


class Answer:
    """All choices of all requests of a job, in the order of requests and then choices."""

    def __init__(self, requests: Sequence[EngineRequest]) -> None:
        self.requests = requests
        self.prompt_logprobs: dict[int, Sequence[TokenLogprobs | None]] = {}
        self._order = {request.request_id: number for number, request in enumerate(requests)}
        self._choices = [[Choice() for _ in range(request.params.n)] for request in requests]
        self._cached = [0] * len(requests)
        self._lookups: list[Explanation | None] = [None] * len(requests)

    async def gather(self, job: Job) -> None:
        with job:
            async for delta in job:
                self.add(delta)

    def add(self, delta: TextDelta) -> int:
        """Take in one delta; returns the number of the request that it belongs to."""
        number = self._order[delta.request_id]
        self._choices[number][delta.index].add(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[number] = delta.prompt_logprobs
        if delta.index == 0:  # later choices share the first one's prefill: that isn't the caller's saving
            self._cached[number] = delta.num_cached_tokens
            self._lookups[number] = delta.lookup or self._lookups[number]
        return number

    def choices(self, number: int) -> list[Choice]:
        return self._choices[number]

    def cached(self, number: int) -> int:
        return self._cached[number]

    def explained(self, number: int) -> dict[str, Any] | None:
        """What the prefix cache had for a request's prompt; None where it wasn't asked or nothing is known yet."""
        found = self._lookups[number]
        return None if found is None else {**asdict(found), "lost": found.lost, "text": str(found)}

    def usage(self, *, completion_tokens: int | None = None, reasoning_tokens: int | None = None) -> dict[str, Any]:
        """OpenAI's usage object; `completion_tokens` overrides the count, `reasoning_tokens` are told where known."""
        prompt = sum(len(request.prompt_token_ids) for request in self.requests)
        if completion_tokens is None:
            completion_tokens = sum(len(c.token_ids) for choices in self._choices for c in choices)
        known = (
            {} if reasoning_tokens is None else {"completion_tokens_details": {"reasoning_tokens": reasoning_tokens}}
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt + completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
            **known,
        }
