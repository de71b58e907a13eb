"""Which mark goes first when room is needed: the one that saves least for each byte that it holds.

Owns the order of eviction. Knows marks and bytes, not who holds them; frees nothing itself.

A mark's worth = tokens that it saves x chance that a request resumes there / bytes that go with it, halved with every
_HALF_LIFE turnovers since its last use. A turnover is as many requests as there are pinned marks: about one request
for each conversation. The order keeps log2(worth at last use) + time of last use in
half-lives: the same order as the worth itself, and it doesn't move while time passes, so no mark is looked at until it
is the cheapest or changes. Marks of equal worth go by last use.

Chances are in powers of two of an ordinary place's: _PINNED for the last prompt end of each conversation, the end of
tools and system, and places where requests did branch off; _SUPERSEDED for the prompt end of a request whose
conversation has gone further. They are wide apart: while anything else can go, pinned marks stay and superseded ones
go, unless they have not been used for several turnovers.
"""

from __future__ import annotations

import heapq
import math

from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.index import Mark

POLICIES = ("value", "lru")
_PLACES = frozenset(("turn", "junction"))
_EDGES = frozenset(("turn", "near end"))
EDGE = 512  # tokens before a prompt's end: a request that resumes there goes on with the conversation
HEADS = frozenset(("replay", "end", "preempt"))  # where the conversation itself goes on
_HALF_LIFE = 1.0
_PINNED = 7.0
_SUPERSEDED = -1.0
_ABANDONED = -8.0  # superseded and nothing goes on from it: the conversation took another way
_NEAR_END = 3.0  # of 2,557 requests of the recorded sessions 119 change the last one or two blocks of 64 tokens
_TURN = 1.0  # prompts are edited where messages end
_FEW = 4  # a cache of fewer pinned marks doesn't forget faster


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
        self._likely = 0  # pinned marks among them

    def __len__(self) -> int:
        return self._live

    # --- membership -----------------------------------------------------------------------------------------

    def tick(self) -> None:
        """A request has come."""
        if self.policy == "value":
            self._now += 1.0 / (_HALF_LIFE * max(_FEW, self._likely))

    def touch(self, mark: Mark) -> None:
        """A mark is new, or was used."""
        if self.policy == "lru":
            self._now += 1.0
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
            self._likely -= mark.likely
            mark.likely = False

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
        likely = pinned(mark)
        self._likely += likely - mark.likely
        mark.likely = likely
        heapq.heappush(self._heap, (key, self._serial, mark))
        if len(self._heap) > 4 * self._live + 64:  # entries of marks that have moved on
            self._heap = [entry for entry in self._heap if entry[2].entry == entry[1]]
            heapq.heapify(self._heap)

    # --- worth ----------------------------------------------------------------------------------------------

    def key(self, mark: Mark) -> float:
        if self.policy == "lru":
            return mark.clock
        gain = _gain(mark)
        held = self._slot_bytes
        if not mark.children:  # its pages go with it, back to the mark before it
            held += -(-gain // PAGE_TOKENS) * self._page_bytes
        return mark.clock + math.log2(gain / held) + chance(mark)

    def candidate(self, kind: str, position: int, before: int, onward: int | None) -> float:
        """The key that a mark still to be made would have: it may only push out what is worth less.

        `before`, `onward`: the positions of the marks around it. A prompt's end takes the place of the last one, so it
        saves all of it.
        """
        if self.policy == "lru":
            return math.inf
        if kind in HEADS or kind == "system":
            return self._now + math.log2(position / self._slot_bytes) + _PINNED
        value = self._now + math.log2((position - before) / self._slot_bytes)
        if kind == "junction":  # two requests have parted here already
            return value + _PINNED
        if kind in _EDGES and onward is not None and onward - position <= EDGE:
            return value + _NEAR_END
        return value + (_TURN if kind in _PLACES else 0.0) + (_between(position, onward) if onward is not None else 0.0)

    def check(self, marks: set[Mark]) -> str | None:
        """What is wrong, in words: exactly `marks` must be in order, each with one valid entry."""
        valid = {entry[2] for entry in self._heap if entry[2].entry == entry[1]}
        if valid != marks or self._live != len(marks):
            return f"{len(valid)} marks are in the order of eviction, {self._live} counted, {len(marks)} should be"
        return None


def pinned(mark: Mark) -> bool:
    """Whether requests are likely to resume here: see the top of this file."""
    if mark.kind == "system":
        return True
    if not mark.head.superseded and (mark.kind in HEADS or not mark.children):
        return True
    if mark.kind == "junction" and not mark.head.superseded:
        return True  # a third request has had no time to come; later its hits decide
    return mark.hits > 0 and mark.kind not in HEADS


def _gain(mark: Mark) -> int:
    """Tokens that would have to be computed again without it.

    For a pinned mark counted from the pinned one before it: ordinary ones between them will be gone by then.
    """
    before = mark.parent
    if pinned(mark):
        while before is not None and not pinned(before):
            before = before.parent
    return mark.position - (before.position if before is not None else 0)


def chance(mark: Mark) -> float:
    """How likely it is that a request resumes here rather than before or after, in powers of two."""
    if pinned(mark):
        return _PINNED + math.log2(1 + mark.hits)
    if mark.kind in _EDGES and not mark.head.superseded and mark.position >= mark.head.prompt_tokens - EDGE:
        return _NEAR_END
    value = _TURN if mark.kind in _PLACES else 0.0
    onward = next(iter(mark.children), None)
    if mark.head.superseded and (mark.kind in HEADS or mark.kind == "near end"):
        value = (_ABANDONED if onward is None else _SUPERSEDED) + mark.hits
    if onward is not None:
        value += _between(mark.position, onward.position)
    return value


def _between(position: int, onward: int) -> float:
    """How likely it is that a prompt is cut between two marks, in powers of two.

    Where edits fall is scale-free: as likely between 1k and 2k tokens as between 50k and 100k. Marks thinned by this
    are spaced logarithmically, so that a cut loses at most about half of what is shared.
    """
    return math.log2(math.log2(onward / position))
