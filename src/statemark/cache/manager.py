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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from statemark.cache.budget import Budget
from statemark.cache.conversation import goes_on, left_behind
from statemark.cache.digest import PAGE_TOKENS, PrefixChain, Tokens, roll_stamp, stamp_seed
from statemark.cache.explain import DAMAGED, EVICTED, NO_ROOM, explain
from statemark.cache.index import Head, Lookup, Mark, Node, PrefixIndex
from statemark.cache.integrity import check_holders
from statemark.cache.plan import history_spacing, marks_of_prompt
from statemark.cache.stats import CacheStats, cache_stats
from statemark.cache.value import HEADS, EvictionOrder
from statemark.errors import IntegrityError

if TYPE_CHECKING:
    from statemark.cache.disk.restore import Fetch
    from statemark.cache.disk.tier import DiskTier

Stamps = npt.NDArray[np.uint64]


@dataclass(eq=False)
class Lease:
    """What one running sequence holds. `cached`: tokens that it didn't have to compute."""

    chain: PrefixChain
    pages: list[int]
    slot: int
    cached: int
    stamp: int
    stamp_position: int
    head: Head
    source: Mark | None = None
    page_copy: tuple[int, int] | None = None
    lookup: Lookup | None = None
    continues: Head | None = None  # the conversation's last request, superseded once this one's prompt end is a mark
    shared_pages: int = 0  # that many of `pages` are the index's
    last_mark: int = 0  # where its newest mark lies: what the next one would save begins there
    spare: int | None = None  # a second slot, while tokens are drafted
    refused: list[int] = field(default_factory=list)  # planned marks that got no slot and whose pages are not filed yet
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
    """Leases and marks under one byte budget; what saves least for its bytes goes first (see value.py)."""

    def __init__(self, budget: Budget, fingerprint: str, *, enabled: bool = True, policy: str = "value") -> None:
        self.budget = budget
        self.index = PrefixIndex(fingerprint)
        self.enabled = enabled
        self.counters: Counter[str] = Counter()
        self.disk: DiskTier | None = None  # set by whoever opens one
        self.order = EvictionOrder(policy, budget.pages.item_bytes, budget.slots.item_bytes)
        # A request may not turn the whole cache over for its own marks.
        self.marks_per_request = max(8, budget.slots.capacity // 4)
        self._spacing = history_spacing(budget.pages.item_bytes, budget.slots.item_bytes)

    # --- leases ---------------------------------------------------------------------------------------------

    def find(self, chain: PrefixChain, tokens: Tokens) -> Lookup:
        """The deepest mark that leaves at least one token to compute (its logits are what the caller wants)."""
        return self.index.lookup(chain, tokens, len(tokens) - 1)

    def begin(self, chain: PrefixChain, tokens: Tokens, *, use_cache: bool = True, room: int = 0) -> Lease | None:
        """A lease for a sequence that starts with `tokens`, from the deepest usable mark; None if there is no room.

        Its pages cover `room` tokens beyond what is cached. Who gets none asks again, so nothing is counted then.

        `chain` is what `index.chain` made for this sequence: it holds the salt, and remembers digests between calls.
        """
        found = self.find(chain, tokens) if self.enabled and use_cache else Lookup(None, ())
        mark = found.mark
        hits = 0
        if mark is not None:
            hits = mark.hits
            self.pin(mark)  # making room below must not evict it
        slot = self.take_slot()
        head = self.take_page() if slot is not None and mark is not None and mark.tail_page is not None else None
        if slot is None or (mark is not None and mark.tail_page is not None and head is None):
            if slot is not None:
                self.budget.slots.drop(slot)
            if mark is not None:
                self.unpin(mark)
            return None
        if mark is None:
            seed = stamp_seed(chain.root)
            continues = left_behind(self.index, found)
            lease = Lease(chain, [], slot, 0, seed, 0, Head(len(tokens)), lookup=found, continues=continues)
        else:
            pages = [n.page for n in found.path[: mark.position // PAGE_TOKENS] if n.page is not None]
            self.budget.pages.retain_all(pages)
            shared = len(pages)
            copy = None
            if head is not None and mark.tail_page is not None:
                pages.append(head)
                copy = (mark.tail_page, head)
            own, continues = goes_on(self.index, found, mark, len(tokens))
            at = mark.position
            lease = Lease(chain, pages, slot, at, mark.stamp, at, own, mark, copy, found, continues, shared, at)
        if continues is not None and (mark is None or continues is not mark.head or mark.kind not in HEADS):
            self._is_history(continues)  # at once: its ends are no way on for anybody, and this request needs room
        if not self.grow(lease, lease.cached + room):
            if mark is not None:
                mark.hits = hits
            self.release(lease)
            return None
        self.order.tick()
        if use_cache and self.enabled:
            self._count(found, len(tokens))
        return lease

    def _count(self, found: Lookup, prompt_tokens: int) -> None:
        said = explain(found, prompt_tokens)
        self.counters["lookups"] += 1
        self.counters["tokens_asked"] += prompt_tokens
        self.counters["tokens_reused"] += found.position
        if said.lost:
            self.counters[f"tokens_lost_{said.veto}"] += said.lost

    def fetch(self, tokens: Tokens, chain: PrefixChain) -> Fetch | None:
        """Bring what the disk has of a prompt, beyond what is here, into memory; the caller advances it to its end."""
        return self.disk.fetch(chain, tokens) if self.disk is not None and self.enabled else None

    def grow(self, lease: Lease, tokens: int) -> bool:
        """Make the lease's pages cover `tokens` tokens; False when there is no room (what it got stays)."""
        while len(lease.pages) * PAGE_TOKENS < tokens:
            page = self.take_page()
            if page is None:
                return False
            lease.pages.append(page)
        return True

    def drop_spare(self, lease: Lease | None) -> None:
        if lease is not None and lease.spare is not None:
            self.budget.slots.drop(lease.spare)
            lease.spare = None

    def started(self, lease: Lease) -> None:
        """The first step has read the source mark and copied its page: neither is needed any more."""
        if lease.source is not None:
            self.unpin(lease.source, used=True)
            lease.source = None
        lease.page_copy = None

    def release(self, lease: Lease) -> None:
        """Give up everything that the lease holds."""
        self._close(lease)
        self.budget.slots.drop(lease.slot)

    def retire(self, lease: Lease, tokens: Tokens, position: int, stamps: Stamps, kind: str) -> None:
        """End a lease and keep its running state as a mark at `position`: the slot changes hands, nothing is copied."""
        if lease.head.superseded:
            # Who parted from this prompt while it ran is a branch: what follows this answer is still to come.
            lease.head = Head(lease.head.prompt_tokens)
        self.publish(lease, tokens, position, lease.slot, stamps, kind)
        self._close(lease)

    def _close(self, lease: Lease) -> None:
        if lease.closed:
            raise IntegrityError("a lease was released twice")
        lease.closed = True
        self.started(lease)
        self.budget.pages.drop_all(lease.pages)
        lease.pages.clear()
        self.drop_spare(lease)

    # --- marks ----------------------------------------------------------------------------------------------

    def plan(self, lease: Lease, prompt_tokens: int, turns: tuple[int, ...] = ()) -> list[tuple[int, str]]:
        """Positions to mark while the rest of this prompt is computed, ascending, with their kind."""
        shared = lease.lookup.shared if lease.lookup is not None else 0
        most, spacing = self.marks_per_request, self._spacing
        return marks_of_prompt(prompt_tokens, turns, lease.cached, shared, most=most, spacing=spacing)

    def mark_slot(self, lease: Lease, position: int, kind: str, onward: int | None = None) -> int | None:
        """A slot for a planned mark, to be written by the next step; hand it to `publish` or `drop_slot`.

        It pushes out only what is worth less than a mark between the lease's last one and `onward`, where the next one
        is planned; None if there is nothing.
        """
        if not self.enabled:
            return None
        slot = self.take_slot(self.order.candidate(kind, position, lease.last_mark, onward))
        if slot is None:
            lease.refused.append(position)
            self.counters["marks_without_room"] += 1
        else:
            lease.last_mark = position
        return slot

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
        node, new = self.index.extend(lease.chain, tokens, lease.pages[:full])
        for fresh in new:
            if fresh.page is not None:
                self.budget.pages.retain(fresh.page)
        self._note_refused(lease, node)
        self._share(lease, node)
        digest = lease.chain.at(tokens, position)
        mark = self.index.find(digest)
        if mark is not None:
            self.budget.slots.drop(slot)
            if kind in HEADS:  # it is this request's now
                mark.kind = kind
            mark.head.marks.remove(mark)
        else:
            tail = tokens[full * PAGE_TOKENS : position].tobytes()
            tail_page = lease.pages[full] if tail else None
            if tail_page is not None:
                self.budget.pages.retain(tail_page)
            mark = Mark(digest, position, expected, slot, node, tail, tail_page, kind)
            self.index.attach(mark)
            if mark.parent is not None:
                self.order.update(mark.parent)  # no longer the last of its path
            for child in mark.children:
                self.order.update(child)
            self.counters["marks_published"] += 1
        mark.head = lease.head
        lease.head.marks.append(mark)
        self.order.touch(mark)
        if kind in HEADS:
            self._supersede(lease)
        if self.disk is not None:
            self.disk.offer(mark)
        return mark

    def _note_refused(self, lease: Lease, last: Node) -> None:
        """Where no room was found for a mark, its page says so to whoever misses it: `last` or one before it."""
        depths = {position // PAGE_TOKENS for position in lease.refused}
        node: Node | None = last
        while depths and node is not None and node.depth >= min(depths):
            if node.depth in depths:
                node.missing = NO_ROOM
            node = node.parent
        lease.refused = [position for position in lease.refused if position // PAGE_TOKENS > last.depth]

    def _supersede(self, lease: Lease) -> None:
        """This request's prompt end is a mark: those of the request that it goes on from are history."""
        old, lease.continues = lease.continues, None
        if old is not None and old is not lease.head:
            self._is_history(old)

    def _is_history(self, head: Head) -> None:
        if head.superseded:
            return
        head.superseded = True
        for mark in head.marks:
            self.order.update(mark)
            if self.disk is not None and mark.kind in HEADS:
                self.disk.superseded(mark)

    def _share(self, lease: Lease, node: Node) -> None:
        """Use the index's page where the lease computed its own copy of the same prefix: equal bits, half the bytes."""
        current: Node | None = node
        while current is not None and current.page is not None and current.depth > lease.shared_pages:
            i = current.depth - 1
            if current.page != lease.pages[i]:
                self.budget.pages.retain(current.page)
                self.budget.pages.drop(lease.pages[i])
                lease.pages[i] = current.page
            current = current.parent
        lease.shared_pages = max(lease.shared_pages, node.depth)

    def discard(self, mark: Mark) -> None:
        """Drop a mark that turned out damaged, on disk too. Nobody may be reading it."""
        if self.disk is not None:
            self.disk.forget(mark)
        if mark.pins:
            raise IntegrityError(f"mark at {mark.position} is being read by {mark.pins} sequences")
        mark.node.missing = DAMAGED
        self._evict(mark)
        self.counters["marks_discarded"] += 1

    def reset(self) -> int:
        """Forget every mark that no running sequence is reading, on disk too; returns how many went from memory."""
        if self.disk is not None:
            self.disk.clear()
        gone = [m for m in self.index.marks() if not m.pins]
        for mark in gone:
            self._evict(mark)
        return len(gone)

    # --- room -----------------------------------------------------------------------------------------------

    def take_page(self) -> int | None:
        while (page := self.budget.try_page()) is None:
            if not self._evict_one() and not self._relieve():
                return None
        return page

    def take_slot(self, below: float | None = None) -> int | None:
        while (slot := self.budget.try_slot()) is None:
            if not self._evict_one(below) and not (below is None and self._relieve()):
                return None
        return slot

    def _relieve(self) -> bool:
        return self.disk is not None and self.disk.relieve()

    def pin(self, mark: Mark) -> None:
        mark.pins += 1
        self.order.drop(mark)

    def unpin(self, mark: Mark, *, used: bool = False) -> None:
        mark.pins -= 1
        if used:
            self.order.touch(mark)
        else:
            self.order.update(mark)

    def _evict_one(self, below: float | None = None) -> bool:
        victim = self.order.pop(below)
        if victim is None:
            return False
        victim.node.missing = EVICTED
        self._evict(victim)
        self.counters["marks_evicted"] += 1
        return True

    def _evict(self, mark: Mark) -> None:
        self.order.drop(mark)
        mark.head.marks.remove(mark)
        self.budget.slots.drop(mark.slot)
        if mark.tail_page is not None:
            self.budget.pages.drop(mark.tail_page)
        for node in self.index.detach(mark):
            if node.page is not None:
                self.budget.pages.drop(node.page)
        if mark.parent is not None and not mark.parent.children:
            self.order.update(mark.parent)  # the last of its path now: it holds pages

    # --- reports and checks ---------------------------------------------------------------------------------

    def stats(self) -> CacheStats:
        return cache_stats(self.budget, len(self.index), self.counters)

    def check_integrity(self, leases: list[Lease], pending_slots: list[int] | None = None) -> None:
        """Raise IntegrityError unless every page and slot is held by exactly those who should hold it.

        `leases` are all open ones; `pending_slots` those handed out by `mark_slot` and not published yet.
        """
        self.budget.check()
        self.index.check()
        wrong = self.order.check({m for m in self.index.marks() if not m.pins})
        if wrong is not None:
            raise IntegrityError(wrong)
        sources = Counter(lease.source.digest for lease in leases if lease.source is not None)
        pages = [lease.pages for lease in leases]
        slots = [lease.slot for lease in leases] + (pending_slots or [])
        slots += [lease.spare for lease in leases if lease.spare is not None]
        if self.disk is not None:
            sources += self.disk.pins()
            lent_pages, lent_slots = self.disk.lent()
            pages, slots = pages + lent_pages, slots + lent_slots
        check_holders(self.budget, self.index, pages, slots, sources)
