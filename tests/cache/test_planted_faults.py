"""Faults planted in the cache's meaning: each must be caught by what the tests here demand, or these prove nothing."""

from __future__ import annotations

import pytest

from statemark.cache import digest, index, plan, value
from statemark.cache.manager import CacheManager
from statemark.errors import IntegrityError
from tests.cache.asking import Asking, few_marks, join, text


def stories() -> None:
    """What the cases demand, in short: where reuse ends, who shares, what stays under pressure, what is said."""
    a = Asking()
    shared = text(1700)
    reused = [a.ask(join(shared, text(300, 10_000 * i)), turns=[500, 1996]) for i in (1, 2, 3)]
    assert reused[0] == 0
    assert 850 <= reused[1] < 1700
    assert reused[2] == 1700, "junction"
    assert a.cache.stats().tokens_lost["unmarked"] == 1700 - reused[1]
    assert a.ask(join(shared, text(300, 10_000)), turns=[500, 1996]) == 1999, "replay"
    assert a.ask(join(shared, text(300, 10_000)), salt="other") == 0
    assert a.cache.find(a.cache.index.chain("nobody"), shared).shared == 0

    a = few_marks(6)
    prompt, last = text(2_000), 0
    for i in range(6):
        assert a.ask(prompt, turns=[700, len(prompt) - 4], out=30) == last
        kept = {mark.position for mark in a.cache.index.marks()}
        assert {700, len(prompt) - 1} <= kept, "pinned"
        last = len(prompt) - 1
        prompt = join(prompt, text(400, 10_000 * (i + 1)))

    a = Asking(tokens=6_000, marks=9)
    for r in range(6):
        for chat in range(4):
            a.ask(join(text(600, 100_000 * (chat + 1)), text(100 * r, 50_000 * (chat + 1))), turns=[500])
    assert a.result.reuse > 0.5
    a.cache.reset()
    assert a.cache.budget.used_bytes == 0


def test_the_stories_hold():
    stories()


def salts_are_forgotten(monkeypatch):
    real = digest.root_digest
    monkeypatch.setattr(index, "root_digest", lambda fingerprint, salt, adapter="": real(fingerprint, "", adapter))


def pages_suffice(monkeypatch):
    """A hit wherever pages match, as attention alone would have it: the mark before it is taken for its state."""
    real = index.PrefixIndex.lookup

    def lookup(self, prefix, tokens, limit):
        found = real(self, prefix, tokens, limit)
        if found.mark is not None and found.page_match > found.mark.position:
            found.mark.position = min(found.page_match, limit)
        return found

    monkeypatch.setattr(index.PrefixIndex, "lookup", lookup)


def junctions_one_token_late(monkeypatch):
    real = plan.plan_marks

    def late(prompt, turns, start, limit, *, junction=None, spacing=0):
        return real(prompt, turns, start, limit, junction=None if junction is None else junction + 1, spacing=spacing)

    monkeypatch.setattr(plan, "plan_marks", late)


def no_junctions(monkeypatch):
    real = plan.plan_marks
    monkeypatch.setattr(plan, "plan_marks", lambda *args, junction=None, **options: real(*args, **options))


def no_replay(monkeypatch):
    real = plan.plan_marks

    def without(*args, **options):
        return [(position, kind) for position, kind in real(*args, **options) if kind != "replay"]

    monkeypatch.setattr(plan, "plan_marks", without)


def published_one_token_late(monkeypatch):
    real = CacheManager.publish

    def late(self, lease, tokens, position, slot, stamps, kind):
        return real(self, lease, tokens, position + (position < len(tokens)), slot, stamps, kind)

    monkeypatch.setattr(CacheManager, "publish", late)


def nothing_is_pinned(monkeypatch):
    monkeypatch.setattr(value, "pinned", lambda mark: False)


def the_best_goes_first(monkeypatch):
    real = value.EvictionOrder.key
    monkeypatch.setattr(value.EvictionOrder, "key", lambda self, mark: -real(self, mark))


def pages_are_stranded(monkeypatch):
    monkeypatch.setattr(index.PrefixIndex, "prune", lambda self, node: [])


def a_page_of_each_eviction_leaks(monkeypatch):
    real = index.PrefixIndex.prune
    monkeypatch.setattr(index.PrefixIndex, "prune", lambda self, node: real(self, node)[1:])


def tails_are_not_compared(monkeypatch):
    def longest(node, onward):
        return max(node.marks.values(), key=lambda mark: mark.position, default=None)

    monkeypatch.setattr(index, "_longest", longest)


def losses_go_uncounted(monkeypatch):
    monkeypatch.setattr(CacheManager, "_count", lambda self, found, prompt_tokens: None)


@pytest.mark.parametrize(
    "fault",
    [
        salts_are_forgotten, pages_suffice, junctions_one_token_late, no_junctions, no_replay, published_one_token_late,
        nothing_is_pinned, the_best_goes_first, pages_are_stranded, a_page_of_each_eviction_leaks,
        tails_are_not_compared, losses_go_uncounted,
    ],
)  # fmt: skip
def test_the_stories_notice(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, IntegrityError)):
        stories()
