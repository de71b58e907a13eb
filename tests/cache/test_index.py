"""The index alone: what it finds, what it keeps, what its check notices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.cache import Mark, PrefixIndex
from statemark.errors import IntegrityError


def ids(*tokens):
    return np.array(tokens, dtype=np.int32)


class Filled:
    """An index with marks given as (tokens, salt); pages and slots are numbered as they come."""

    def __init__(self, *prefixes, salt=""):
        self.index = PrefixIndex("model")
        self.next = 0
        for tokens in prefixes:
            self.add(tokens, salt)

    def add(self, tokens, salt=""):
        full = len(tokens) // 16
        pages = list(range(self.next, self.next + full))
        self.next += full + 1
        chain = self.index.chain(salt)
        node, _ = self.index.extend(chain, tokens, pages)
        tail = tokens[full * 16 :].tobytes()
        digest = chain.at(tokens, len(tokens))
        mark = Mark(digest, len(tokens), 1, self.next, node, tail, self.next if tail else None, "turn")
        self.index.attach(mark)
        self.index.check()
        return mark


def prompt(n, start=0):
    return np.arange(start, start + n, dtype=np.int32)


@pytest.mark.parametrize("p", [1, 2, 15, 16, 17, 31, 32, 33, 100])
def test_a_mark_is_found_at_any_token(p):
    f = Filled(prompt(p))
    assert f.index.lookup(f.index.chain(""), prompt(p + 1), p).position == p
    assert f.index.lookup(f.index.chain(""), prompt(p), p - 1).position == 0, "a hit must leave a token to compute"


def test_the_deepest_mark_at_or_below_the_divergence():
    f = Filled(prompt(10), prompt(20), prompt(40), prompt(41))
    assert f.index.lookup(f.index.chain(""), prompt(100), 99).position == 41
    assert f.index.lookup(f.index.chain(""), prompt(41), 40).position == 40
    other = prompt(100)
    other[25] = 999
    found = f.index.lookup(f.index.chain(""), other, 99)
    assert (found.position, found.page_match) == (20, 16)
    other[5] = 999
    assert f.index.lookup(f.index.chain(""), other, 99).position == 0


def test_salts_and_models_share_nothing():
    f = Filled(prompt(40), salt="alice")
    assert f.index.lookup(f.index.chain("alice"), prompt(50), 49).position == 40
    assert f.index.lookup(f.index.chain("bob"), prompt(50), 49).position == 0
    assert f.index.lookup(f.index.chain(""), prompt(50), 49).position == 0
    assert f.index.lookup(f.index.chain(""), prompt(50), 49).page_match == 0, "not even the match of pages may show"


def test_token_ids_are_compared_even_when_the_digest_agrees():
    f = Filled(prompt(40))
    node = next(iter(f.index.nodes()))
    node.tokens = prompt(16, 5).tobytes()  # as if two prefixes had one digest
    assert f.index.lookup(f.index.chain(""), prompt(50), 49).position == 0


def test_pages_go_with_the_last_mark_that_can_use_them():
    f = Filled(prompt(40))
    long = f.add(prompt(100))
    short = f.index.lookup(f.index.chain(""), prompt(41), 40).mark
    assert {n.depth for n in f.index.nodes()} == {1, 2, 3, 4, 5, 6}
    assert [n.depth for n in f.index.detach(long)] == [6, 5, 4, 3]
    f.index.check()
    assert [n.depth for n in f.index.detach(short)] == [2, 1]
    f.index.check()
    assert not list(f.index.nodes())
    assert not f.index._nodes


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


parts = st.lists(st.sampled_from([(1,), (2, 3), (4,) * 15, (5,) * 16, tuple(range(40, 75))]), min_size=1, max_size=4)


@settings(deadline=None, max_examples=300)
@given(st.lists(parts, max_size=12), st.lists(st.integers(0, 30), max_size=6), parts)
def test_any_history_finds_what_a_list_of_all_prefixes_would(added, removed, asked):
    """`lookup` and the links between marks, against the definition."""
    f = Filled()
    marks = {}
    for pieces in added:
        tokens = sum(pieces, ())
        if tokens not in marks:
            marks[tokens] = f.add(ids(*tokens))
    for i in removed:
        if marks:
            f.index.detach(marks.pop(sorted(marks)[i % len(marks)]))
            f.index.check()
    tokens = sum(asked, ())
    found = f.index.lookup(f.index.chain(""), ids(*tokens), len(tokens) - 1)
    before = [m for m in marks if len(m) < len(tokens) and tokens[: len(m)] == m]
    assert found.position == max(map(len, before), default=0)
    assert found.shared == max((common(tokens, m) for m in marks), default=0)
    for prefix, mark in marks.items():
        above = [m for m in marks if len(m) < len(prefix) and prefix[: len(m)] == m]
        assert mark.parent is (marks[max(above, key=len)] if above else None)
        assert set(mark.children) == {m for m in marks.values() if m.parent is mark}


def break_digest(f):
    next(iter(f.index.nodes())).tokens = prompt(16, 3).tobytes()


def break_position(f):
    next(f.index.marks()).position += 1


def break_tail(f):
    next(f.index.marks()).tail = prompt(8, 90).tobytes()


def break_ways_on(f):
    next(f.index.nodes()).onward.reverse()
    next(f.index.nodes()).onward.append(b"")


def break_listing(f):
    f.index._marks.clear()


def break_strand(f):
    _node, _ = f.index.extend(f.index.chain(""), prompt(48), [7, 8, 9])


@pytest.mark.parametrize(
    "damage", [break_digest, break_position, break_tail, break_ways_on, break_listing, break_strand]
)
def test_check_notices(damage):
    f = Filled(prompt(40))
    damage(f)
    with pytest.raises(IntegrityError):
        f.index.check()
