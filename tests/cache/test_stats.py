"""What the cache says that it can hold, against filling it; and its counters."""

import pytest

from statemark.cache import PAGE_TOKENS, Budget, capacity
from statemark.cache.explain import WHY
from tests.cache.asking import PAGE, SLOT, Asking, join, text
from tests.engine.harness import engine, one, request
from tests.toy import ToyExecutor


@pytest.mark.parametrize(("total", "page", "slot"), [(10_000, 10, 40), (4 << 30, 196_608, 20_201_472), (999, 7, 300)])
def test_what_it_is_said_to_hold_fits_at_once(total, page, slot):
    budget = Budget(total, page_bytes=page, slot_bytes=slot)
    holds = capacity(budget)
    assert holds.marks > 0
    assert all(budget.try_slot() is not None for _ in range(holds.marks))
    assert all(budget.try_page() is not None for _ in range(holds.tokens // PAGE_TOKENS))
    assert budget.total - budget.used_bytes < page + slot, "and hardly anything is left"


def test_the_line_at_the_start():
    assert str(capacity(Budget(4 << 30, page_bytes=196_608, slot_bytes=20_201_472))) == (
        "174,752 tokens of pages and 106 marks, smallest reusable prefix 1 token"
    )
    assert "nothing can be reused" in str(capacity(Budget(99, page_bytes=10, slot_bytes=40)))


@pytest.mark.parametrize("slots", [1, 2])
def test_the_smallest_reusable_prefix_is_one_token_as_soon_as_two_states_and_two_pages_fit(slots):
    x = ToyExecutor()
    e = engine(x, cache_bytes=slots * (x.page_bytes + x.slot_bytes), max_model_len=8)
    one(e, request("a", [1, 2], max_tokens=1))
    reused = one(e, request("b", [1, 3], max_tokens=1)).cached
    said = capacity(e.cache.budget).smallest_prefix
    assert (reused, said) == ((0, None) if slots == 1 else (1, 1))


def test_every_counter_is_there_from_the_start_and_means_what_it_says():
    a = Asking()
    stats = a.cache.stats()
    assert set(stats.tokens_lost) == set(WHY)
    assert (stats.lookups, sum(stats.tokens_lost.values()), stats.marks) == (0, 0, 0)
    a.ask(text(100), turns=[30, 96])
    a.ask(join(text(75), text(40, 900)))
    stats = a.cache.stats()
    assert (stats.lookups, stats.tokens_asked, stats.tokens_reused) == (2, 215, 30)
    assert stats.tokens_lost == {"unmarked": 45, "evicted": 0, "no_room": 0, "damaged": 0}
    assert stats.marks == len(a.cache.index) == stats.marks_published - stats.marks_evicted
    assert stats.bytes_used == stats.pages * stats.bytes_per_token * PAGE_TOKENS + stats.marks * stats.bytes_per_mark


@pytest.mark.parametrize(("n", "turn"), [(16, 8), (33, 16), (160, 85), (1000, 500)])
def test_bytes_in_use_are_those_of_the_formula(n, turn):
    """A mark is its state and, where it ends inside a page, that page's head; the tokens before it are whole pages."""
    a = Asking()
    a.ask(text(n), turns=[turn], out=1)
    ends = {mark.position for mark in a.cache.index.marks()}
    whole = max(ends) // PAGE_TOKENS
    inside = {position // PAGE_TOKENS for position in ends if position % PAGE_TOKENS}
    pages = whole + len({page for page in inside if page >= whole})
    assert a.cache.budget.used_bytes == pages * PAGE + len(ends) * SLOT
