"""Which mark goes first when room is needed: the one that saves least for each byte that it holds.

Owns the order of eviction. Knows marks and bytes, not who holds them; frees nothing itself.

A mark's worth = tokens that it saves x chance that a request resumes there / bytes that go with it, halved with every
_HALF_LIFE turnovers of the cache since its last use. The order keeps log2(worth at last use) + time of last use in
half-lives: the same order as the worth itself, and it doesn't move while time passes, so no mark is looked at until it
is the cheapest or changes. Marks of equal worth go by last use.

Chances are in powers of two of an ordinary place's: _PINNED for the last prompt end of each conversation, the end of
tools and system, and places where requests did branch off; _SUPERSEDED for the prompt end of a request whose
conversation has gone further. They are wide apart: while anything else can go, pinned marks stay and superseded ones
go, unless they have not been used for as long as the whole cache takes to turn over several times.
"""

from __future__ import annotations

import heapq
import math

from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.index import Mark

POLICIES = ("value", "lru")
_PLACES = frozenset(("turn", "junction"))
HEADS = frozenset(("replay", "end", "preempt"))  # where the conversation itself goes on
_HALF_LIFE = 0.5
_PINNED = 5.0
_SUPERSEDED = -4.0
_ABANDONED = -4.0  # superseded and nothing goes on from it: the conversation took another way
_TURN = 1.0  # prompts are edited where messages end
_SMALL = 16  # a cache of fewer marks doesn't forget faster


class EvictionOrder:
    """Every mark that may be evicted, cheapest loss first. `lru` orders by last use alone, for comparison."""

    def __init__(self, policy: str, page_bytes: int, slot_bytes: int) -> None:
        self.policy = policy
        self._page_bytes = page_bytes
        self._slot_bytes = slot_bytes
        self._now = 0.0
        self._serial = 0
        self._heap: list[tuple[float, int, Mark]] = []
        self._live = 0

    def __len__(self) -> int:
        return self._live

    # --- membership -----------------------------------------------------------------------------------------

    def touch(self, mark: Mark) -> None:
        """A mark is new, or was used."""
        self._now += 1.0 / (_HALF_LIFE * max(_SMALL, self._live))
        mark.clock = self._now
        self.update(mark)

    def update(self, mark: Mark) -> None:
        """What decides about a mark changed. Only a fall has to be told: a rise is noticed when it comes up."""
        if mark.pins:
            return
        if not mark.entry:
            self._live += 1
        self._push(mark, self.key(mark))

    def drop(self, mark: Mark) -> None:
        """A mark is gone, or may not go for now: somebody reads it."""
        if mark.entry:
            mark.entry = 0
            self._live -= 1

    def pop(self, below: float | None = None) -> Mark | None:
        """The mark that goes next; None if there is none, or none that is worth less than `below`."""
        while self._heap:
            key, serial, mark = self._heap[0]
            if mark.entry != serial:
                heapq.heappop(self._heap)
                continue
            now = self.key(mark)
            if now > key:
                heapq.heappop(self._heap)
                self._push(mark, now)
                continue
            if below is not None and now >= below:
                return None
            heapq.heappop(self._heap)
            self.drop(mark)
            return mark
        return None

    def _push(self, mark: Mark, key: float) -> None:
        self._serial += 1
        mark.entry = self._serial
        heapq.heappush(self._heap, (key, self._serial, mark))
        if len(self._heap) > 4 * self._live + 64:  # entries of marks that have moved on
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapq.heapify(self._heap)

    # --- worth ----------------------------------------------------------------------------------------------

    def key(self, mark: Mark) -> float:
        if self.policy == "lru":
            return mark.clock
        held = self._slot_bytes
        if not mark.children:  # its pages go with it, back to the mark before it
            held += -(-mark.gain // PAGE_TOKENS) * self._page_bytes
        return mark.clock + math.log2(mark.gain / held) + chance(mark)

    def candidate(self, kind: str, gain: int) -> float:
        """The key that a mark still to be made would have: it may only push out what is worth less."""
        if self.policy == "lru":
            return math.inf
        likely = _PINNED if kind in HEADS or kind == "system" else _TURN if kind in _PLACES else 0.0
        return self._now + math.log2(max(1, gain) / self._slot_bytes) + likely

    def check(self, marks: set[Mark]) -> str | None:
        """What is wrong, in words: exactly `marks` must be in order, each with one valid entry."""
        valid = {entry[2] for entry in self._heap if entry[2].entry == entry[1]}
        if valid != marks or self._live != len(marks):
            return f"{len(valid)} marks are in the order of eviction, {self._live} counted, {len(marks)} should be"
        return None


def chance(mark: Mark) -> float:
    """How likely it is that a request resumes here rather than before or after, in powers of two."""
    if mark.kind in HEADS and not mark.head.superseded:
        return _PINNED
    if mark.kind == "system" or (mark.hits and mark.kind not in HEADS):
        return _PINNED + math.log2(1 + mark.hits)
    value = _TURN if mark.kind in _PLACES else 0.0
    if mark.head.superseded and (mark.kind in HEADS or mark.kind == "near end"):
        value = _SUPERSEDED + mark.hits
    onward = next(iter(mark.children), None)
    if onward is None:
        value += _ABANDONED if value < 0 else 0.0
    else:
        # Where edits fall is scale-free: as likely between 1k and 2k tokens as between 50k and 100k. Marks thinned by
        # it are spaced logarithmically, so that a cut loses at most about half of what is shared.
        value += min(0.0, math.log2(math.log2(onward.position / mark.position)))
    return value
