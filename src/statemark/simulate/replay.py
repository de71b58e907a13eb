"""Runs traces on the cache alone: how many tokens would be computed, with which budget and which policy.

One request after the other, in order of time: what a cache can save, not how long it takes. Uses the same manager,
planner and eviction as the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from statemark.cache import PAGE_TOKENS, Budget, CacheManager, Lease, PrefixChain
from statemark.cache.digest import Tokens
from statemark.errors import IntegrityError
from statemark.simulate.traces import BLOCK, TraceRequest, prefix_hashes, unique_tokens

# A 0.8B Qwen3.5 in bfloat16: a page of 16 tokens over 6 attention layers, a state over 18 recurrent ones.
PAGE_BYTES = 16 * 6 * 2 * 2 * 256 * 2
SLOT_BYTES = 18 * (16 * 128 * 128 + 3 * 6144) * 4


@dataclass
class Result:
    """`computed` of `prompt` tokens had to be computed; `peak_bytes` were held at most."""

    prompt: int = 0
    computed: int = 0
    requests: int = 0
    peak_bytes: int = 0
    counters: Counter[str] = field(default_factory=Counter)

    @property
    def reuse(self) -> float:
        return 1 - self.computed / self.prompt


def ideal(requests: Iterable[TraceRequest]) -> Result:
    """An attention-only prefix cache without limit, at the trace's grain: every shared whole block is reused."""
    result = Result()
    seen: dict[str, set[int]] = {}
    for request in requests:
        known = seen.setdefault(request.session, set())
        prefixes = prefix_hashes(request.blocks)
        low, high = 0, len(prefixes)
        while low < high:  # prefixes of what is known are known
            middle = (low + high + 1) // 2
            low, high = (middle, high) if int(prefixes[middle - 1]) in known else (low, middle - 1)
        known.update(int(h) for h in prefixes[low:])
        result.prompt += len(request.tokens)
        result.computed += len(request.tokens) - min(BLOCK * low, len(request.tokens) - 1)
        result.requests += 1
    return result


class Replay:
    """Requests on one cache. `total` bytes hold pages and marks together."""

    def __init__(
        self, total: int, *, page_bytes: int = PAGE_BYTES, slot_bytes: int = SLOT_BYTES, policy: str = "value"
    ) -> None:
        self.cache = CacheManager(Budget(total, page_bytes=page_bytes, slot_bytes=slot_bytes), "trace", policy=policy)
        self.result = Result(counters=self.cache.counters)
        self._last: dict[tuple[str, str], tuple[Tokens, PrefixChain]] = {}

    def run(self, request: TraceRequest) -> None:
        """One request from its lookup to its end mark."""
        tokens, prompt = request.tokens, len(request.tokens)
        chain = self._chain(request)
        lease = self.cache.begin(chain, tokens)
        self.result.requests += 1
        self.result.prompt += prompt
        whole = np.concatenate([tokens, unique_tokens(request.output, self.result.requests)])
        if lease is None or not self.cache.grow(lease, len(whole)):
            self.result.computed += prompt
            self.cache.counters["too_large"] += 1
            if lease is not None:
                self.cache.release(lease)
            return
        self.result.computed += prompt - lease.cached
        self._mark(lease, whole, prompt, request.turns)
        end = len(whole) - 1  # the last token of an answer is sampled, not run
        self.cache.retire(lease, whole, end, _stamps(lease, whole, end), "end")
        self.result.peak_bytes = max(self.result.peak_bytes, self.cache.budget.used_bytes)

    def _mark(self, lease: Lease, tokens: Tokens, prompt: int, turns: tuple[int, ...]) -> None:
        planned = self.cache.plan(lease, prompt, turns)
        self.cache.started(lease)
        for i, (position, kind) in enumerate(planned):
            onward = planned[i + 1][0] if i + 1 < len(planned) else None
            slot = self.cache.mark_slot(lease, position, kind, onward)
            if slot is None:
                continue
            self.cache.publish(lease, tokens, position, slot, _stamps(lease, tokens, position), kind)
            lease.advance(tokens, position)

    def _chain(self, request: TraceRequest) -> PrefixChain:
        """Digests are taken over from the conversation's last prompt as far as both are alike."""
        key = (request.session, request.agent)
        chain = self.cache.index.chain(request.session)
        if key in self._last:
            before, known = self._last[key]
            count = min(len(before), len(request.tokens))
            different = np.nonzero(before[:count] != request.tokens[:count])[0]
            alike = int(different[0]) if len(different) else count
            chain = known.fork(alike // PAGE_TOKENS)
        self._last[key] = (request.tokens, chain)
        return chain


def _stamps(lease: Lease, tokens: Tokens, position: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """What kernels would have written beside the state."""
    return np.array([[position, lease.stamp_at(tokens, position)]], dtype=np.uint64)


def unlimited(sessions: list[list[TraceRequest]]) -> Result:
    """All sessions with more memory than they can fill."""
    return _one_by_one(sessions, 1 << 50, PAGE_BYTES, SLOT_BYTES)


def few_marks(sessions: list[list[TraceRequest]], marks: int, policy: str = "value") -> Result:
    """Each session with room for `marks` marks beside the running state, and for any number of pages."""
    slot = 1 << 40  # pages cost nothing beside it
    return _one_by_one(sessions, (marks + 2) * slot - 1, 1, slot, policy)


def _one_by_one(
    sessions: list[list[TraceRequest]], total: int, page_bytes: int, slot_bytes: int, policy: str = "value"
) -> Result:
    whole = Result()
    for session in sessions:
        replay = Replay(total, page_bytes=page_bytes, slot_bytes=slot_bytes, policy=policy)
        for request in session:
            replay.run(request)
        if "too_large" in replay.cache.counters:
            raise IntegrityError("a request didn't fit a cache that was to hold any")
        part = replay.result
        whole.prompt += part.prompt
        whole.computed += part.computed
        whole.requests += part.requests
        whole.peak_bytes += part.peak_bytes
        whole.counters += part.counters
    return whole


def together(sessions: list[list[TraceRequest]], total: int, policy: str) -> Result:
    """All sessions at once, from the same moment on, on one cache of `total` bytes."""
    replay = Replay(total, policy=policy)
    for request in sorted((r for session in sessions for r in session), key=lambda r: r.at):
        replay.run(request)
    return replay.result
