"""Who holds which page and slot: leases of running sequences, published marks, eviction under the budget.

A band diagram of one running sequence that resumed at a mark (p = 37) and has computed 70 tokens, page = 16:

    tokens   0        16        32   37     48        64   70
    pages    [ shared ][ shared ][copy of 5|own][ own    ][own.. ]   lease.pages; shared ones are nodes' pages
    slot                              ^ read once from the mark's slot, pinned until the first step has run
    marks                             |                       each holds: its slot, its tail page, its node's path

Freed by: `release` (everything the lease holds), `_evict` (a mark's slot and tail page, and nodes nothing needs).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from statemark.cache.budget import Budget
from statemark.cache.digest import PAGE_TOKENS, Tokens, roll_stamp, stamp_seed
from statemark.cache.index import Lookup, Mark, Node, PrefixIndex
from statemark.errors import IntegrityError

Stamps = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Lease:
    """What one running sequence holds. `cached`: tokens that it didn't have to compute."""

    salt: str
    pages: list[int]
    slot: int
    cached: int
    stamp: int
    stamp_position: int
    source: Mark | None = None
    page_copy: tuple[int, int] | None = None
    lookup: Lookup | None = None
    closed: bool = field(default=False, repr=False)

    def stamp_at(self, tokens: Tokens, position: int) -> int:
        """The stamp that a state has after exactly the first `position` of `tokens`."""
        if position < self.stamp_position:
            raise IntegrityError(f"stamp asked at {position}, but {self.stamp_position} tokens are consumed already")
        return roll_stamp(self.stamp, tokens[self.stamp_position : position])

    def advance(self, tokens: Tokens, position: int) -> None:
        self.stamp = self.stamp_at(tokens, position)
        self.stamp_position = position


class CacheManager:
    """Leases and marks under one byte budget; least recently used marks go first."""

    def __init__(self, budget: Budget, fingerprint: str, *, enabled: bool = True) -> None:
        self.budget = budget
        self.index = PrefixIndex(fingerprint)
        self.enabled = enabled
        self.counters: Counter[str] = Counter()
        self._recency: dict[bytes, Mark] = {}  # insertion order is the order of use, oldest first

    # --- leases ---------------------------------------------------------------------------------------------

    def find(self, salt: str, tokens: Tokens) -> Lookup:
        """The deepest mark that leaves at least one token to compute (its logits are what the caller wants)."""
        return self.index.lookup(salt, tokens, len(tokens) - 1)

    def begin(self, salt: str, tokens: Tokens, *, use_cache: bool = True) -> Lease | None:
        """A lease for a sequence that starts with `tokens`, from the deepest usable mark; None if there is no room."""
        found = self.find(salt, tokens) if self.enabled and use_cache else Lookup(None, ())
        mark = found.mark
        if mark is not None:
            mark.pins += 1  # making room below must not evict it
        slot = self._slot()
        head = self._page() if slot is not None and mark is not None and mark.tail_page is not None else None
        if slot is None or (mark is not None and mark.tail_page is not None and head is None):
            if slot is not None:
                self.budget.slots.drop(slot)
            if mark is not None:
                mark.pins -= 1
            return None
        if mark is None:
            seed = stamp_seed(self.index.root(salt))
            return Lease(salt, [], slot, 0, seed, 0, lookup=found)
        pages = [n.page for n in found.path[: mark.position // PAGE_TOKENS] if n.page is not None]
        for page in pages:
            self.budget.pages.retain(page)
        copy = None
        if head is not None and mark.tail_page is not None:
            pages.append(head)
            copy = (mark.tail_page, head)
        self._touch(mark)
        return Lease(salt, pages, slot, mark.position, mark.stamp, mark.position, mark, copy, found)

    def grow(self, lease: Lease, tokens: int) -> bool:
        """Make the lease's pages cover `tokens` tokens; False when there is no room (what it got stays)."""
        while len(lease.pages) * PAGE_TOKENS < tokens:
            page = self._page()
            if page is None:
                return False
            lease.pages.append(page)
        return True

    def started(self, lease: Lease) -> None:
        """The first step has read the source mark and copied its page: neither is needed any more."""
        if lease.source is not None:
            lease.source.pins -= 1
            lease.source = None
        lease.page_copy = None

    def release(self, lease: Lease) -> None:
        """Give up everything that the lease holds."""
        self._close(lease)
        self.budget.slots.drop(lease.slot)

    def retire(self, lease: Lease, tokens: Tokens, position: int, stamps: Stamps, kind: str) -> None:
        """End a lease and keep its running state as a mark at `position`: the slot changes hands, nothing is copied."""
        self.publish(lease, tokens, position, lease.slot, stamps, kind)
        self._close(lease)

    def _close(self, lease: Lease) -> None:
        if lease.closed:
            raise IntegrityError("a lease was released twice")
        lease.closed = True
        self.started(lease)
        for page in lease.pages:
            self.budget.pages.drop(page)
        lease.pages.clear()

    # --- marks ----------------------------------------------------------------------------------------------

    def mark_slot(self) -> int | None:
        """A slot for a mark to be written by the next step; hand it to `publish` or `drop_slot`."""
        return self._slot() if self.enabled else None

    def drop_slot(self, slot: int) -> None:
        self.budget.slots.drop(slot)

    def publish(self, lease: Lease, tokens: Tokens, position: int, slot: int, stamps: Stamps, kind: str) -> Mark:
        """File the state in `slot` under the first `position` of `tokens`; takes over the slot unless it raises.

        `stamps` (uint64 [recurrent layers, 2]: count, hash) is what the kernels wrote beside the state. Anything but
        exactly (position, stamp of these tokens) in every layer raises IntegrityError and publishes nothing.
        """
        expected = lease.stamp_at(tokens, position)
        if stamps.ndim != 2 or not len(stamps) or np.any(stamps != np.array([position, expected], dtype=np.uint64)):
            counts = sorted({int(c) for c in stamps[:, 0]}) if stamps.ndim == 2 else []
            raise IntegrityError(
                f"mark at {position} refused: the state in slot {slot} has consumed {counts} tokens"
                + (" of other content" if counts == [position] else "")
            )
        full = position // PAGE_TOKENS
        if len(lease.pages) * PAGE_TOKENS < position:
            raise IntegrityError(f"mark at {position} refused: pages cover {len(lease.pages) * PAGE_TOKENS} tokens")
        node, new = self.index.extend(lease.salt, tokens[: full * PAGE_TOKENS], lease.pages[:full])
        for fresh in new:
            if fresh.page is not None:
                self.budget.pages.retain(fresh.page)
        self._share(lease, node)
        digest = self.index.digest_at(lease.salt, tokens, position)
        known = self.index.find(digest)
        if known is not None:
            self.budget.slots.drop(slot)
            self._touch(known)
            return known
        tail = tokens[full * PAGE_TOKENS : position].tobytes()
        tail_page = lease.pages[full] if tail else None
        if tail_page is not None:
            self.budget.pages.retain(tail_page)
        mark = Mark(digest, position, expected, slot, node, tail, tail_page, kind)
        self.index.attach(mark)
        self._recency[digest] = mark
        self.counters["marks_published"] += 1
        return mark

    def _share(self, lease: Lease, node: Node) -> None:
        """Use the index's page where the lease computed its own copy of the same prefix: equal bits, half the bytes."""
        current: Node | None = node
        while current is not None and current.page is not None:
            i = current.depth - 1
            if current.page != lease.pages[i]:
                self.budget.pages.retain(current.page)
                self.budget.pages.drop(lease.pages[i])
                lease.pages[i] = current.page
            current = current.parent

    def discard(self, mark: Mark) -> None:
        """Drop a mark that turned out damaged. Nobody may be reading it."""
        if mark.pins:
            raise IntegrityError(f"mark at {mark.position} is being read by {mark.pins} sequences")
        self._evict(mark)
        self.counters["marks_discarded"] += 1

    def reset(self) -> int:
        """Forget every mark that no running sequence is reading; returns how many went."""
        gone = [m for m in self.index.marks() if not m.pins]
        for mark in gone:
            self._evict(mark)
        return len(gone)

    # --- room -----------------------------------------------------------------------------------------------

    def _page(self) -> int | None:
        while (page := self.budget.try_page()) is None:
            if not self._evict_one():
                return None
        return page

    def _slot(self) -> int | None:
        while (slot := self.budget.try_slot()) is None:
            if not self._evict_one():
                return None
        return slot

    def _touch(self, mark: Mark) -> None:
        self._recency[mark.digest] = self._recency.pop(mark.digest)

    def _evict_one(self) -> bool:
        victim = next((m for m in self._recency.values() if not m.pins), None)
        if victim is None:
            return False
        self._evict(victim)
        self.counters["marks_evicted"] += 1
        return True

    def _evict(self, mark: Mark) -> None:
        del self._recency[mark.digest]
        self.budget.slots.drop(mark.slot)
        if mark.tail_page is not None:
            self.budget.pages.drop(mark.tail_page)
        for node in self.index.detach(mark):
            if node.page is not None:
                self.budget.pages.drop(node.page)

    # --- checks ---------------------------------------------------------------------------------------------

    def check_integrity(self, leases: list[Lease], pending_slots: list[int] | None = None) -> None:
        """Raise IntegrityError unless every page and slot is held by exactly those who should hold it.

        `leases` are all open ones; `pending_slots` those handed out by `mark_slot` and not published yet.
        """
        self.budget.check()
        self.index.check()
        pages: Counter[int] = Counter()
        slots: Counter[int] = Counter(pending_slots or [])
        pins: Counter[bytes] = Counter()
        for lease in leases:
            pages.update(lease.pages)
            slots[lease.slot] += 1
            if lease.source is not None:
                pins[lease.source.digest] += 1
        for node in self.index.nodes():
            if node.page is not None:
                pages[node.page] += 1
        for mark in self.index.marks():
            slots[mark.slot] += 1
            if mark.tail_page is not None:
                pages[mark.tail_page] += 1
            if mark.pins != pins[mark.digest]:
                raise IntegrityError(f"mark at {mark.position} has {mark.pins} pins, {pins[mark.digest]} readers")
        if set(self._recency) != {m.digest for m in self.index.marks()}:
            raise IntegrityError("the order of use lists other marks than the index")
        for pool, held in ((self.budget.pages, pages), (self.budget.slots, slots)):
            if dict(held) != pool.held():
                wrong = {i for i in held.keys() | pool.held().keys() if held[i] != pool.refs(i)}
                raise IntegrityError(f"{pool.name}s {sorted(wrong)[:8]} have another number of holders than references")
        if any(n > 1 for n in slots.values()):
            raise IntegrityError("a state slot has two owners")
