"""Digests and stamps: what they must separate, and that the fast form equals the definition."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from statemark.cache import roll_stamp
from statemark.cache.digest import chain, root_digest

ids = st.lists(st.integers(0, 2**31 - 1), max_size=3000)


def by_definition(stamp: int, tokens: list[int]) -> int:
    for t in tokens:
        stamp = (stamp * 0x9E3779B97F4A7C15 + t + 1) % 2**64
    return stamp


@given(st.integers(0, 2**64 - 1), ids)
def test_stamp_is_its_definition(seed, tokens):
    assert roll_stamp(seed, np.array(tokens, dtype=np.int32)) == by_definition(seed, tokens)


@given(st.integers(0, 2**64 - 1), ids, st.data())
def test_stamp_does_not_depend_on_how_the_tokens_were_cut(seed, tokens, data):
    cut = data.draw(st.integers(0, len(tokens)))
    a = np.array(tokens, dtype=np.int32)
    assert roll_stamp(roll_stamp(seed, a[:cut]), a[cut:]) == roll_stamp(seed, a)


def test_leading_zeros_and_order_change_the_stamp():
    def stamp(*tokens: int) -> int:
        return roll_stamp(7, np.array(tokens, dtype=np.int32))

    assert len({stamp(), stamp(0), stamp(0, 0), stamp(0, 1), stamp(1, 0)}) == 5


def test_root_separates_model_and_salt():
    assert len({root_digest("a", "b"), root_digest("ab", ""), root_digest("", "ab"), root_digest("b", "a")}) == 4


def test_chain_depends_on_parent_and_tokens():
    a, b = root_digest("m", ""), root_digest("m", "x")
    assert len({chain(a, b"1234"), chain(b, b"1234"), chain(a, b"1235"), chain(a, b"")}) == 4
