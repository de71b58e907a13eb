"""The manager under any history of leases and marks: it owns what it should, and finds exactly what was stored."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemark.cache import PAGE_TOKENS, Budget, CacheManager, roll_stamp, stamp_seed
from statemark.errors import IntegrityError

PAGE, SLOT = 10, 40


def manager(total=10_000, **options):
    return CacheManager(Budget(total, page_bytes=PAGE, slot_bytes=SLOT), "model", **options)


def stamps(cache, salt, tokens, position, layers=2):
    value = roll_stamp(stamp_seed(cache.index.root(salt)), tokens[:position])
    return np.array([[position, value]] * layers, dtype=np.uint64)


def any_slot(cache):
    """A slot at any price; what may be pushed out for a planned mark is another test's."""
    return cache.take_slot() if cache.enabled else None


def ids(*tokens):
    return np.array(tokens, dtype=np.int32)


def run(cache, tokens, marks=(), salt="", kind="end", keep=True):
    """One sequence from begin to end; returns how many tokens it reused."""
    lease = cache.begin(cache.index.chain(salt), tokens)
    assert lease is not None
    assert cache.grow(lease, len(tokens))
    for position in marks:
        slot = any_slot(cache)
        cache.publish(lease, tokens, position, slot, stamps(cache, salt, tokens, position), "turn")
    cached = lease.cached
    if keep:
        cache.retire(lease, tokens, len(tokens), stamps(cache, salt, tokens, len(tokens)), kind)
    else:
        cache.release(lease)
    cache.check_integrity([])
    return cached


def text(n, start=0):
    return np.arange(start, start + n, dtype=np.int32)


@pytest.mark.parametrize("n", [2, 15, 16, 17, 31, 32, 33, 200])
def test_append_only_continuation_reuses_all_that_was_run(n):
    cache = manager()
    assert run(cache, text(n)) == 0
    assert run(cache, text(n + 5)) == n


def test_l2_exact_multiples_of_a_page_lose_nothing():
    for n in (16, 32, 48):
        cache = manager()
        assert run(cache, text(n), marks=[n - 1], keep=False) == 0
        assert run(cache, text(n), keep=False) == n - 1


def test_l14_insertion_in_the_middle_reuses_the_head_and_claims_no_more():
    a, b, c = text(64, 0), text(64, 1000), text(64, 2000)
    cache = manager()
    run(cache, np.concatenate([a, b]), marks=[64, 127])
    assert run(cache, np.concatenate([a, c, b])) == 64


def test_a_wrong_stamp_is_refused_and_nothing_is_published():
    cache = manager()
    tokens = text(40)
    lease = cache.begin(cache.index.chain(""), tokens)
    cache.grow(lease, 40)
    slot = any_slot(cache)
    right = stamps(cache, "", tokens, 30)
    for wrong in (
        stamps(cache, "", tokens, 29),
        stamps(cache, "", tokens, 31),
        stamps(cache, "other salt", tokens, 30),
        stamps(cache, "", text(40, 1), 30),
        np.concatenate([right, stamps(cache, "", tokens, 29)]),
        right[:0],
        right[0],
    ):
        with pytest.raises(IntegrityError, match="refused"):
            cache.publish(lease, tokens, 30, slot, wrong, "turn")
        cache.check_integrity([lease], [slot])
        assert len(cache.index) == 0
    cache.publish(lease, tokens, 30, slot, right, "turn")
    cache.check_integrity([lease])
    assert cache.find(cache.index.chain(""), tokens).position == 30


def test_the_mark_in_use_outlives_pressure_and_others_go_by_age():
    cache = manager(total=3 * SLOT + 7 * PAGE)
    run(cache, text(40))
    run(cache, text(40, 500))
    lease = cache.begin(cache.index.chain(""), text(50))  # reads the older one and makes it the newer
    assert (lease.cached, cache.index.find(lease.source.digest)) == (40, lease.source)
    slot = any_slot(cache)
    assert slot is not None
    assert cache.find(cache.index.chain(""), text(50, 500)).mark is None, "the least recently used mark made room"
    assert any_slot(cache) is None, "all that is left is pinned or held"
    cache.check_integrity([lease], [slot])
    cache.started(lease)
    assert any_slot(cache) is not None


def test_a_hit_refreshes_only_the_mark_that_it_used():
    cache = manager(total=4 * SLOT + 30 * PAGE, policy="lru")
    run(cache, text(20), keep=True)
    run(cache, text(60), marks=[], keep=True)  # used the first one
    run(cache, text(30, 900), keep=True)
    lease = cache.begin(cache.index.chain(""), text(70))
    assert lease.cached == 60
    cache.started(lease)
    assert [m.position for m in sorted(cache.index.marks(), key=lambda m: m.clock)] == [20, 30, 60]


def test_two_sequences_that_computed_the_same_prefix_end_up_sharing_pages():
    cache = manager()
    a, b = cache.begin(cache.index.chain(""), text(64)), cache.begin(cache.index.chain(""), text(64))
    for lease in (a, b):
        assert cache.grow(lease, 64)
    before = cache.budget.pages.used
    cache.retire(a, text(64), 64, stamps(cache, "", text(64), 64), "end")
    slot = any_slot(cache)
    cache.publish(b, text(64), 63, slot, stamps(cache, "", text(64), 63), "replay")
    cache.check_integrity([b])
    assert (before, cache.budget.pages.used) == (8, 5)  # three shared; the tails differ in how far they may be read


def test_adapters_and_models_are_apart_as_salts_are():
    cache = manager()
    tokens = text(40)
    lease = cache.begin(cache.index.chain("s", "adapter"), tokens)
    cache.grow(lease, 40)
    right = np.array([[40, lease.stamp_at(tokens, 40)]] * 2, dtype=np.uint64)
    cache.retire(lease, tokens, 40, right, "end")
    assert cache.find(cache.index.chain("s", "adapter"), text(50)).position == 40
    for chain in (cache.index.chain("s"), cache.index.chain("s", "other"), cache.index.chain("", "adapter")):
        look = cache.find(chain, text(50))
        assert (look.position, look.page_match, look.shared, look.path) == (0, 0, 0, ())
    other = CacheManager(Budget(10_000, page_bytes=PAGE, slot_bytes=SLOT), "another model")
    assert other.index.root("s") != cache.index.root("s")


def test_a_short_prompt_with_many_messages_gets_few_marks_and_a_long_one_as_many_as_the_budget_allows():
    cache = manager(total=100_000)
    for prompt, most in ((100, 4), (1_000, 1_000 // 64), (100_000, cache.marks_per_request)):
        lease = cache.begin(cache.index.chain(""), text(prompt))
        marks = cache.plan(lease, prompt, tuple(range(10, prompt, 10)))
        assert len(marks) == most
        assert {prompt - 1, (prompt - 2) // 10 * 10, 10} <= {p for p, _ in marks}
        cache.release(lease)


def test_disabled_keeps_nothing():
    cache = manager(enabled=False)
    assert any_slot(cache) is None
    assert run(cache, text(40), keep=False) == 0
    assert cache.budget.used_bytes == 0


class Histories(RuleBasedStateMachine):
    """Sequences over a tiny alphabet, so that prefixes collide all the time, in a cache that is always too small."""

    @initialize(pages=st.integers(6, 14), slots=st.integers(2, 5))
    def start(self, pages, slots):
        self.cache = manager(total=pages * PAGE + slots * SLOT)
        self.open = []  # (lease, salt, tokens, computed)
        self.pending = []
        self.stored: dict[bytes, tuple[str, bytes]] = {}

    @rule(
        salt=st.sampled_from(["", "s"]),
        blocks=st.lists(
            st.sampled_from([ids(1), ids(*[2] * 7), ids(*[3] * 16), ids(*[4] * 30)]), min_size=1, max_size=3
        ),
    )
    def begin(self, salt, blocks):
        tokens = np.concatenate(blocks)
        found = self.cache.find(self.cache.index.chain(salt), tokens)
        lease = self.cache.begin(self.cache.index.chain(salt), tokens)
        if lease is None:
            return
        assert lease.cached == found.position <= len(tokens) - 1
        if found.mark is not None:
            assert self.stored[found.mark.digest] == (salt, tokens[: lease.cached].tobytes())
        if not self.cache.grow(lease, len(tokens)):
            self.cache.release(lease)
            return
        self.open.append((lease, salt, tokens))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def mark(self, data):
        lease, salt, tokens = data.draw(st.sampled_from(self.open))
        position = data.draw(st.integers(lease.cached + 1, len(tokens)))
        slot = any_slot(self.cache)
        if slot is None:
            return
        right = data.draw(st.booleans())
        if right:
            mark = self.cache.publish(lease, tokens, position, slot, stamps(self.cache, salt, tokens, position), "turn")
            self.stored[mark.digest] = (salt, tokens[:position].tobytes())
        else:
            wrong = stamps(self.cache, salt, tokens, position) + np.uint64(data.draw(st.integers(1, 2**63)))
            with pytest.raises(IntegrityError):
                self.cache.publish(lease, tokens, position, slot, wrong, "turn")
            self.pending.append(slot)

    @precondition(lambda self: self.pending)
    @rule()
    def drop(self):
        self.cache.drop_slot(self.pending.pop())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def step_done(self, data):
        self.cache.started(data.draw(st.sampled_from(self.open))[0])

    @precondition(lambda self: self.open)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data, keep):
        entry = data.draw(st.sampled_from(self.open))
        self.open.remove(entry)
        lease, salt, tokens = entry
        if keep:
            end = len(tokens)
            self.cache.retire(lease, tokens, end, stamps(self.cache, salt, tokens, end), "end")
            self.stored[self.cache.index.chain(salt).at(tokens, end)] = (salt, tokens.tobytes())
            assert self.cache.find(self.cache.index.chain(salt), np.append(tokens, ids(9))).position >= end
        else:
            self.cache.release(lease)

    @rule()
    def reset(self):
        self.cache.reset()

    @invariant()
    def whole(self):
        if hasattr(self, "cache"):
            self.cache.check_integrity([e[0] for e in self.open], self.pending)
            assert self.cache.budget.used_bytes <= self.cache.budget.total

    def teardown(self):
        if hasattr(self, "cache"):
            for lease, _, _ in self.open:
                self.cache.release(lease)
            for slot in self.pending:
                self.cache.drop_slot(slot)
            self.cache.reset()
            assert self.cache.budget.used_bytes == 0, "something leaked"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def lose_a_reference(cache, lease):
    cache.budget.pages.drop(lease.pages[0])


def keep_a_page_too_long(cache, lease):
    cache.budget.pages.retain(lease.pages[0])


def two_owners(cache, lease):
    next(cache.index.marks()).slot = lease.slot


def forget_a_pin(cache, lease):
    next(cache.index.marks()).pins = 1


@pytest.mark.parametrize("damage", [lose_a_reference, keep_a_page_too_long, two_owners, forget_a_pin])
def test_check_integrity_notices(damage):
    cache = manager()
    run(cache, text(40, 300))
    lease = cache.begin(cache.index.chain(""), text(40))
    cache.grow(lease, 40)
    cache.check_integrity([lease])
    damage(cache, lease)
    with pytest.raises(IntegrityError):
        cache.check_integrity([lease])


def test_page_size_is_what_the_arithmetic_here_assumes():
    assert PAGE_TOKENS == 16
