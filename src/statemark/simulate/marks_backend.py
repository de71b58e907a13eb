"""Statemark's own cache as a backend: the engine's manager, planner and eviction, with stamps in place of kernels; and
the same without a limit, where only the places of marks are kept.

A prompt is never cut for the cache's sake. What a step writes is found from the next one on. Knows no time.
"""

from __future__ import annotations

import numpy as np

from statemark.cache import PAGE_TOKENS, Budget, CacheManager, Lease
from statemark.cache.digest import Tokens
from statemark.cache.plan import history_spacing, marks_of_prompt
from statemark.simulate.backend import Job, Start
from statemark.simulate.endless import Endless
from statemark.simulate.workload import Request

_ANY = 1 << 60


class EndlessBackend:
    """Nothing is ever evicted, so neither bytes nor the order of eviction are of any account."""

    unit = 0
    gives_back = False
    decode_first = True
    makes_way = True

    def __init__(self, page_bytes: int, slot_bytes: int) -> None:
        self.cache = Endless()
        self._spacing = history_spacing(page_bytes, slot_bytes)
        self._written: list[tuple[Request, list[int]]] = []

    def begin(self, job: Job) -> Start:
        request = job.request
        job.computed, shared = self.cache.lookup(request, job.known)
        planned = marks_of_prompt(request.prompt, request.turns, job.computed, shared, most=_ANY, spacing=self._spacing)
        job.store = [position for position, _ in reversed(planned)]  # the next one last
        return Start.READY

    def cut(self, job: Job, offer: int, behind: bool) -> int:
        return offer

    def seen(self, job: Job) -> None:
        """Decoding leaves nothing before its end."""

    def run(self, job: Job, count: int, admitted: bool) -> bool:
        planned, end = job.store, job.computed + count
        written = []
        while planned and planned[-1] <= end:
            written.append(planned.pop())
        if written:
            self._written.append((job.request, written))
        return True

    def end_step(self) -> None:
        for request, positions in self._written:
            self.cache.publish(request, positions)
        self._written.clear()

    def leave(self, job: Job, finished: bool) -> None:
        """The last token of an answer is sampled, not run."""
        self.cache.publish(job.request, [min(job.computed, job.request.prompt + job.request.output - 1)])


class Held:
    """A running request's lease, its tokens, and the marks that are still to come: (position, kind)."""

    __slots__ = ("lease", "planned", "tokens")

    def __init__(self, lease: Lease, tokens: Tokens) -> None:
        self.lease = lease
        self.tokens = tokens
        self.planned: list[tuple[int, str]] = []


class MarksBackend:
    """`memory`: bytes of pages and marks together. A request takes its pages as it goes, as in the engine."""

    unit = PAGE_TOKENS
    gives_back = False
    decode_first = True
    makes_way = True

    def __init__(self, page_bytes: int, slot_bytes: int, memory: int) -> None:
        self.cache = CacheManager(Budget(memory, page_bytes=page_bytes, slot_bytes=slot_bytes), "simulated")
        self._ran: list[tuple[Job, int]] = []
        self._open = 0  # requests that run

    def begin(self, job: Job) -> Start:
        request = job.request
        tokens = spell(request, request.prompt + request.output)
        chain, known = self.cache.index.chain(""), tokens[: job.known]
        lease = self.cache.begin(chain, known, room=1)
        if lease is None and not self._open:  # what is in the way is the mark that it would resume from
            lease = self.cache.begin(chain, known, use_cache=False, room=1)
        if lease is None:
            return Start.NO_ROOM
        self._open += 1
        job.computed = lease.cached
        job.store = held = Held(lease, tokens)
        held.planned = self.cache.plan(lease, request.prompt, request.turns)
        return Start.READY

    def cut(self, job: Job, offer: int, behind: bool) -> int:
        """All of a prompt that there are pages for; for a decode others make room."""
        if not job.prefills:
            return offer
        lease = job.store.lease
        if self.cache.grow(lease, job.computed + offer):
            return offer
        return len(lease.pages) * PAGE_TOKENS - job.computed

    def seen(self, job: Job) -> None:
        """Decoding leaves nothing before its end."""

    def run(self, job: Job, count: int, admitted: bool) -> bool:
        if not self.cache.grow(job.store.lease, job.computed + count):
            return False
        self._ran.append((job, job.computed + count))
        return True

    def end_step(self) -> None:
        """Slots for all marks of the step are taken before it runs, those marks filed after it."""
        made = []
        for job, end in self._ran:
            held: Held = job.store
            while held.planned and held.planned[0][0] <= end:
                position, kind = held.planned.pop(0)
                onward = held.planned[0][0] if held.planned else None
                slot = self.cache.mark_slot(held.lease, position, kind, onward)
                if slot is not None:
                    made.append((held, position, slot, kind))
        for job, _ in self._ran:
            self.cache.started(job.store.lease)
        for held, position, slot, kind in made:
            self.cache.publish(held.lease, held.tokens, position, slot, _stamps(held, position), kind)
            held.lease.advance(held.tokens, position)
        self._ran.clear()

    def leave(self, job: Job, finished: bool) -> None:
        held: Held = job.store
        job.store = None
        self._open -= 1
        if job.computed <= held.lease.cached:
            self.cache.release(held.lease)
            return
        end = min(job.computed, len(held.tokens) - 1) if finished else job.computed
        self.cache.retire(held.lease, held.tokens, end, _stamps(held, end), "end" if finished else "preempt")


def spell(request: Request, length: int) -> Tokens:
    """Token ids of prompt and answer: 16-bit halves of span and place, so that equal prefixes are equal tokens."""
    out = np.empty(length, dtype=np.int32)
    at = 0
    for index, node in enumerate(request.nodes):
        end = min(request.end_of(index), length)
        if end > at:
            out[at:end] = _ids(node, at, end)
            at = end
    if length > at:
        out[at:length] = _ids(request.answer, at, length)
    return out


def _ids(node: int, start: int, end: int) -> Tokens:
    mixed = (node * 0x9E3779B97F4A7C15) >> 7 & 0x7FFFFFFF
    return ((np.arange(start, end, dtype=np.int64) * 40503 + mixed) & 0x7FFFFFFF).astype(np.int32)


def _stamps(held: Held, position: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array([[position, held.lease.stamp_at(held.tokens, position)]], dtype=np.uint64)
