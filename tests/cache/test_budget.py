"""The byte budget: never exceeded, not by what is used and not by what the process really holds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemark.cache import Budget
from statemark.errors import IntegrityError


class BudgetMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(0, 60), page=st.integers(1, 5), slot=st.integers(1, 20))
    def start(self, total, page, slot):
        self.resident: dict[str, set[int]] = {"page": set(), "slot": set()}
        self.budget = Budget(
            total,
            page_bytes=page,
            slot_bytes=slot,
            release_page=self.resident["page"].remove,
            release_slot=self.resident["slot"].remove,
        )
        self.held: list[tuple[str, int]] = []

    @rule(kind=st.sampled_from(["page", "slot"]))
    def take(self, kind):
        pool = getattr(self.budget, kind + "s")
        fits = self.budget.used_bytes + pool.item_bytes <= self.budget.total
        item = self.budget.try_page() if kind == "page" else self.budget.try_slot()
        assert (item is not None) == fits
        if item is not None:
            assert item < pool.capacity, "an id outside the arena"
            assert (kind, item) not in self.held
            self.held.append((kind, item))
            self.resident[kind].add(item)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), retain=st.booleans())
    def drop_or_share(self, data, retain):
        kind, item = data.draw(st.sampled_from(self.held))
        pool = getattr(self.budget, kind + "s")
        if retain:
            pool.retain(item)
            self.held.append((kind, item))
        else:
            self.held.remove((kind, item))
            assert pool.drop(item) == ((kind, item) not in self.held)

    @invariant()
    def adds_up(self):
        if not hasattr(self, "budget"):
            return
        self.budget.check()
        b = self.budget
        resident = len(self.resident["page"]) * b.pages.item_bytes + len(self.resident["slot"]) * b.slots.item_bytes
        assert resident == b.committed_bytes <= b.total


TestBudget = BudgetMachine.TestCase
TestBudget.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_freeing_twice_and_sharing_a_free_id_raise():
    budget = Budget(100, page_bytes=10, slot_bytes=50)
    page = budget.try_page()
    budget.pages.drop(page)
    with pytest.raises(IntegrityError, match="freed twice"):
        budget.pages.drop(page)
    with pytest.raises(IntegrityError, match="can't be shared"):
        budget.pages.retain(page)


def test_a_slot_may_take_the_room_of_freed_pages_and_gives_it_back_first():
    released = []
    budget = Budget(100, page_bytes=10, slot_bytes=50, release_page=released.append)
    pages = [budget.try_page() for _ in range(10)]
    assert budget.try_slot() is None
    for page in pages[:6]:
        budget.pages.drop(page)
    assert budget.try_slot() is not None
    assert len(released) == 5
    assert budget.committed_bytes == 100
