"""Who computes what in the next step: decode first, then prefill in arrival order, under a token budget.

Owns the queue and the leases; imports neither kernels nor models, so that a simulator can drive it. A step is never
empty while a sequence could run: the oldest one always can, since whoever could never fit was refused on arrival.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable

from statemark.cache import PAGE_TOKENS, CacheManager, PrefixChain
from statemark.cache.explain import explain
from statemark.cache.manager import Stamps
from statemark.engine.drafts import look_up
from statemark.engine.sequence import Chunk, Sequence, StepPlan
from statemark.errors import IntegrityError

logger = logging.getLogger(__name__)


class Scheduler:
    """`stamps(slot)` tells what a state slot has consumed; needed where a state is kept without a step."""

    def __init__(
        self,
        cache: CacheManager,
        stamps: Callable[[int], Stamps],
        *,
        max_num_batched_tokens: int,
        max_num_seqs: int,
        max_draft_rows: int = 0,
    ) -> None:
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in arrival order
        self.counters: Counter[str] = Counter()
        self.guess = look_up
        self._stamps = stamps
        self._budget = max_num_batched_tokens
        self._max_seqs = max_num_seqs
        self._draft_rows = max_draft_rows

    def add(self, seq: Sequence) -> None:
        """Behind all that wait with its priority or a more urgent one."""
        place = len(self.waiting)
        while place and self.waiting[place - 1].request.priority > seq.request.priority:
            place -= 1
        self.waiting.insert(place, seq)

    def add_first(self, seqs: list[Sequence]) -> None:
        self.waiting.extendleft(reversed(seqs))

    def schedule(self) -> StepPlan:
        left = self._budget
        chunks: list[Chunk] = []
        # A sequence whose last step failed in company runs alone until it has shown which one was at fault.
        alone = next((s for s in self.running if s.failures), None)
        if self.waiting:
            for seq in self.running:  # who waits has more use of the slots than drafts have
                self.cache.drop_spare(seq.lease)
        for seq in list(self.running):
            if not left or not seq.decoding or seq.lease is None or alone not in (None, seq):
                continue
            count = min(left, seq.length - seq.computed)
            if self._grow_or_preempt(seq, count):
                chunks.append(self._chunk(seq, count))
                left -= count
        if not self.waiting:
            left -= self._draft(chunks, min(left, self._draft_rows - len(chunks)))
        for seq in list(self.running):
            if left and not seq.decoding and alone in (None, seq):
                left -= self._prefill(seq, left, chunks)
        while left and self.waiting and len(self.running) < self._max_seqs and alone is None:
            if self.waiting[0].failures and self.running:
                break
            seq = self.waiting[0]
            if not self._fetched(seq) or not self._admit(seq):
                break
            self.waiting.popleft()
            self.running.append(seq)
            left -= self._prefill(seq, left, chunks)
            if seq.failures:
                break
        if not chunks and self.running:
            # Every page is held by sequences that are all in the middle of a prompt: the youngest makes room.
            if len(self.running) == 1:
                raise IntegrityError("a sequence that was accepted doesn't fit the cache alone")
            self.preempt(self.running[-1])
            return self.schedule()
        if not chunks and self.waiting and alone is None:
            raise IntegrityError("a request that was accepted doesn't fit the empty cache")
        for chunk in chunks:
            self._plan_marks(chunk)
        return StepPlan(chunks)

    def preempt(self, seq: Sequence) -> None:
        """Take a sequence out of the step and back to the head of the queue; its state stays as a mark if it may."""
        self.close(seq, "preempt")
        self.waiting.appendleft(seq)
        seq.computed = 0
        seq.fetched = False
        self.counters["preemptions"] += 1

    def close(self, seq: Sequence, kind: str | None) -> None:
        """End a sequence's hold on the cache; with a kind, its state is kept as a mark at what it has computed."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        lease, seq.lease = seq.lease, None
        if lease is None:
            return
        if kind is None or not self.cache.enabled or not seq.request.use_cache or seq.computed <= lease.cached:
            self.cache.release(lease)
            return
        try:
            self.cache.retire(lease, seq.tokens, seq.computed, self._stamps(lease.slot), kind)
        except IntegrityError as error:  # nothing is kept; the tokens already given stand on their own
            self.cache.counters["integrity_errors"] += 1
            logger.error("request %s: %s", seq.request.request_id, error)
            self.cache.release(lease)

    @staticmethod
    def _reads(seq: Sequence) -> bool:
        """Log-probabilities of the prompt need every row of it; one choice delivers them."""
        return seq.request.use_cache and (seq.request.params.prompt_logprobs is None or seq.index > 0)

    def _fetched(self, seq: Sequence) -> bool:
        """Whether the disk has given what it has of this prompt; nobody who runs has to wait for it."""
        if self._reads(seq) and not seq.fetched:  # once: while it waits for room, what was fetched may have gone again
            seq.fetched = True
            seq.fetch = self.cache.fetch(seq.tokens, self._chain(seq))
        if seq.fetch is not None and not seq.fetch.advance(wait=not self.running):
            return False
        seq.fetch = None
        return True

    def _chain(self, seq: Sequence) -> PrefixChain:
        if seq.chain is None:
            seq.chain = self.cache.index.chain(seq.request.cache_salt, seq.request.adapter)
        return seq.chain

    def _admit(self, seq: Sequence) -> bool:
        read = self._reads(seq)
        lease = self.cache.begin(self._chain(seq), seq.tokens, use_cache=read, room=1)
        if lease is None and not self.running and read:
            # Nobody else will make room: the mark that it would resume from, pinned by it, is what is in the way.
            lease = self.cache.begin(self._chain(seq), seq.tokens, use_cache=False, room=1)
        if lease is None:
            return False
        seq.lease = lease
        seq.computed = lease.cached
        if seq.cached is None:
            seq.cached = lease.cached
            if read and self.cache.enabled and lease.lookup is not None:
                seq.explanation = explain(
                    lease.lookup, seq.prompt_len, seq.request.turn_positions, seq.request.turn_roles
                )
                logger.debug("request %s: %s", seq.request.request_id, seq.explanation)
        seq.planned = []
        if self.cache.enabled and seq.request.use_cache:
            seq.planned = self.cache.plan(lease, seq.prompt_len, seq.request.turn_positions)
        return True

    def _prefill(self, seq: Sequence, left: int, chunks: list[Chunk]) -> int:
        assert seq.lease is not None
        count = min(left, seq.length - seq.computed)
        if not self.cache.grow(seq.lease, seq.computed + count):
            count = len(seq.lease.pages) * PAGE_TOKENS - seq.computed
        if count > 0:
            chunks.append(self._chunk(seq, count))
        return count

    def _draft(self, chunks: list[Chunk], left: int) -> int:
        """Guesses behind decoding sequences, `left` in all at most; returns how many.

        They push no other sequence out. In the step in which a sequence resumes there are none: its state is read from
        a mark there, which must stay as it is.
        """
        drafted = 0
        for chunk in chunks:
            seq, lease = chunk.seq, chunk.seq.lease
            if lease is None or seq.pace is None or not chunk.samples or chunk.state_in != lease.slot or seq.failures:
                continue
            # The step gives a token more than it drafts.
            wanted = min(seq.pace.wanted(), left - drafted, seq.limit - seq.length - 1)
            guesses = self.guess(seq.tokens, max(0, wanted))
            if not len(guesses) or not self.cache.grow(lease, chunk.end + len(guesses)):
                continue
            if lease.spare is None:
                lease.spare = self.cache.take_slot()
            if lease.spare is not None:
                seq.draft(guesses)
                chunk.keep = lease.spare
                chunk.drafts = len(guesses)
                chunk.count += chunk.drafts
                drafted += chunk.drafts
        return drafted

    def _grow_or_preempt(self, seq: Sequence, count: int) -> bool:
        """Room for `count` more tokens, from the youngest sequences if it must be; False if `seq` itself had to go."""
        while seq.lease is not None and not self.cache.grow(seq.lease, seq.computed + count):
            self.preempt(self.running[-1])
        return seq.lease is not None

    def _chunk(self, seq: Sequence, count: int) -> Chunk:
        lease = seq.lease
        assert lease is not None
        first = seq.computed == lease.cached and (lease.source is not None or seq.computed == 0)
        state_in = lease.slot
        if first:
            state_in = lease.source.slot if lease.source is not None else -1
        return Chunk(seq, seq.computed, count, state_in, lease.slot, lease.stamp, lease.pages, lease.page_copy)

    def _plan_marks(self, chunk: Chunk) -> None:
        seq, lease = chunk.seq, chunk.seq.lease
        assert lease is not None
        while seq.planned and seq.planned[0][0] <= chunk.end:
            position, kind = seq.planned.pop(0)
            if position <= chunk.start:
                continue
            onward = seq.planned[0][0] if seq.planned else None
            slot = self.cache.mark_slot(lease, position, kind, onward)
            if slot is not None:
                chunk.marks.append((position - chunk.start, slot, kind))
