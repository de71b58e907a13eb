"""One running choice of a request, and the plan of a step over many of them. Plain data; no decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from statemark.cache import PAGE_TOKENS, Explanation, Lease, PrefixChain
from statemark.cache.digest import Tokens
from statemark.engine.drafts import DraftPace
from statemark.engine.request import EngineRequest

if TYPE_CHECKING:
    from statemark.cache.disk.restore import Fetch
    from statemark.engine.sampler import SamplerState


class Sequence:
    """Choice `index` of a request: its tokens, how many of them are computed, and what it holds of the cache."""

    def __init__(
        self,
        request: EngineRequest,
        index: int,
        arrival: int,
        limit: int,
        sampler: SamplerState,
        pace: DraftPace | None = None,
    ) -> None:
        prompt = request.prompt_token_ids
        self.request = request
        self.index = index
        self.arrival = arrival
        self.limit = limit  # tokens, prompt and answer together, at which it must end
        self.sampler = sampler
        self.pace = pace  # None: no drafts
        self.prompt_len = len(prompt)
        self._tokens = np.empty(max(len(prompt) + 64, PAGE_TOKENS), dtype=np.int32)
        self._tokens[: len(prompt)] = prompt
        self.length = len(prompt)
        self.computed = 0
        self._newest = 1  # tokens left to run while it decodes
        self.lease: Lease | None = None
        self.chain: PrefixChain | None = None
        self.planned: list[tuple[int, str]] = []
        self.cached: int | None = None  # tokens reused when it first started, for the caller
        self.explanation: Explanation | None = None  # of that first lookup
        self.fetched = False  # the disk was asked for its prefix
        self.fetch: Fetch | None = None  # what it reads for it
        self.failures = 0
        self.begun: float | None = None  # when its first step began

    @property
    def tokens(self) -> Tokens:
        return self._tokens[: self.length]

    @property
    def generated(self) -> int:
        return self.length - self.prompt_len

    @property
    def decoding(self) -> bool:
        """Only the newest token is left to run, or those that the last step drafted and didn't keep the state of."""
        return self.length - self.computed <= self._newest and self.generated > 0

    def append(self, token: int) -> None:
        self._reserve(1)
        self._tokens[self.length] = token
        self.length += 1

    def upto(self, end: int) -> Tokens:
        """The first `end` tokens, drafts behind the known ones included."""
        return self._tokens[:end]

    def draft(self, tokens: Tokens) -> None:
        """Put guesses where the next tokens will come; they count for nothing until they are appended."""
        self._reserve(len(tokens))
        self._tokens[self.length : self.length + len(tokens)] = tokens

    def settle(self, chunk: Chunk) -> None:
        """After a step with drafts: go on from the state behind all of them, or from the one before the first."""
        lease = self.lease
        assert lease is not None
        assert chunk.keep is not None
        assert self.pace is not None
        if chunk.accepted == chunk.drafts:
            self.computed = chunk.end
            lease.advance(self.tokens, chunk.end)
        else:
            lease.slot, lease.spare = chunk.keep, lease.slot
        self._newest = self.length - self.computed
        self.pace.learn(chunk.drafts, chunk.accepted)

    def _reserve(self, count: int) -> None:
        while self.length + count > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])


@dataclass
class Chunk:
    """`count` tokens of one sequence in this step, from `start` on; the last `drafts` of them are guesses.

    `state_in`: slot to read (-1: a fresh state), `state_out`: slot to leave the state in. `marks`: (tokens of the
    chunk consumed, slot to copy the state to, kind), ascending. `keep`: with drafts, the slot for the state before the
    first of them.
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
    drafts: int = 0
    keep: int | None = None
    accepted: int = 0  # drafts that turned out right

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def known(self) -> int:
        """Where the tokens that are no guesses end."""
        return self.end - self.drafts

    @property
    def tokens(self) -> Tokens:
        """int32[count]."""
        return self.seq.upto(self.end)[self.start :]

    @property
    def copies(self) -> list[tuple[int, int]]:
        """Where states are copied in passing: (tokens of the chunk consumed, slot), ascending."""
        copies = [(offset, slot) for offset, slot, _ in self.marks]
        return copies if self.keep is None else [*copies, (self.known - self.start, self.keep)]

    @property
    def samples(self) -> bool:
        """The chunk reaches the newest token, so the logits of that row choose the next one."""
        return self.known == self.seq.length


@dataclass
class StepPlan:
    """The flat token batch of one step: chunks in order, their tokens one after the other."""

    chunks: list[Chunk]

    @property
    def tokens(self) -> int:
        return sum(c.count for c in self.chunks)

    @property
    def drafts(self) -> int:
        return sum(c.drafts for c in self.chunks)
