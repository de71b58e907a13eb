"""One running choice of a request, and the plan of a step over many of them. Plain data; no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from statemark.cache import PAGE_TOKENS, Explanation, Lease, PrefixChain
from statemark.cache.digest import Tokens
from statemark.engine.request import EngineRequest

if TYPE_CHECKING:
    from statemark.cache.disk.restore import Fetch
    from statemark.engine.sampler import SamplerState


class Sequence:
    """Choice `index` of a request: its tokens, how many of them are computed, and what it holds of the cache."""

    def __init__(self, request: EngineRequest, index: int, arrival: int, limit: int, sampler: SamplerState) -> None:
        prompt = request.prompt_token_ids
        self.request = request
        self.index = index
        self.arrival = arrival
        self.limit = limit  # tokens, prompt and answer together, at which it must end
        self.sampler = sampler
        self.prompt_len = len(prompt)
        self._tokens = np.empty(max(len(prompt) + 64, PAGE_TOKENS), dtype=np.int32)
        self._tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.computed = 0
        self.lease: Lease | None = None
        self.chain: PrefixChain | None = None
        self.planned: list[tuple[int, str]] = []
        self.cached: int | None = None  # tokens reused when it first started, for the caller
        self.explanation: Explanation | None = None  # of that first lookup
        self.fetched = False  # the disk was asked for its prefix
        self.fetch: Fetch | None = None  # what it reads for it
        self.failures = 0

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self.length]

    @property
    def generated(self) -> int:
        return self.length - self.prompt_len

    @property
    def decoding(self) -> bool:
        """Only the newest token is left to run."""
        return self.computed == self.length - 1 and self.generated > 0

    def append(self, token: int) -> None:
        if self.length == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self.length] = token
        self.length += 1


@dataclass
class Chunk:
    """`count` tokens of one sequence in this step, from `start` on.

    `state_in`: slot to read (-1: a fresh state), `state_out`: slot to leave the state in. `marks`: (tokens of the
    chunk consumed, slot to copy the state to, kind), ascending.
    """

    seq: Sequence
    start: int
    count: int
    state_in: int
    state_out: int
    stamp: int
    pages: list[int]
    page_copy: tuple[int, int] | None = None
    marks: list[tuple[int, int, str]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def samples(self) -> bool:
        """The chunk ends at the newest token, so its last row's logits choose the next one."""
        return self.end == self.seq.length


@dataclass
class StepPlan:
    """The flat token batch of one step: chunks in order, their tokens one after the other."""

    chunks: list[Chunk]

    @property
    def tokens(self) -> int:
        return sum(c.count for c in self.chunks)
