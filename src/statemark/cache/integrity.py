"""Who holds what, counted afresh from those who hold it, against the reference counts of the budget."""

from __future__ import annotations

from collections import Counter

from statemark.cache.budget import Budget
from statemark.cache.index import PrefixIndex
from statemark.errors import IntegrityError


def check_holders(
    budget: Budget, index: PrefixIndex, lease_pages: list[list[int]], other_slots: list[int], readers: Counter[bytes]
) -> None:
    """Raise IntegrityError unless pages, slots and pins are exactly those of leases, nodes and marks.

    `readers`: how many leases read which mark (by digest).
    """
    pages: Counter[int] = Counter()
    slots: Counter[int] = Counter(other_slots)
    for held in lease_pages:
        pages.update(held)
    pages.update(node.page for node in index.nodes() if node.page is not None)
    for mark in index.marks():
        slots[mark.slot] += 1
        if mark.tail_page is not None:
            pages[mark.tail_page] += 1
        if mark.pins != readers[mark.digest]:
            raise IntegrityError(f"mark at {mark.position} has {mark.pins} pins, {readers[mark.digest]} readers")
        if mark not in mark.head.marks:
            raise IntegrityError(f"mark at {mark.position} is not listed with those of its request")
    for pool, holders in ((budget.pages, pages), (budget.slots, slots)):
        if dict(holders) != pool.held():
            wrong = {i for i in holders.keys() | pool.held().keys() if holders[i] != pool.refs(i)}
            raise IntegrityError(f"{pool.name}s {sorted(wrong)[:8]} have another number of holders than references")
    if any(n > 1 for n in slots.values()):
        raise IntegrityError("a state slot has two owners")
