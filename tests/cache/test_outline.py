"""The outline of marks: what it shows of any cache, and that it stays small."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from statemark.cache import outline
from tests.cache.test_index import Filled, prompt

# (tokens shared with everybody, which way then, tokens on that way, when last used)
histories = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 3), st.integers(1, 40), st.integers(0, 99)), min_size=1, max_size=12
)


def filled(history):
    made = Filled()
    seen = set()
    for shared, way, more, clock in history:
        tokens = np.concatenate([prompt(shared), prompt(more, 1000 * way)])
        if tokens.tobytes() not in seen:
            seen.add(tokens.tobytes())
            made.add(tokens).clock = float(clock)
    return made


@given(history=histories)
def test_it_is_the_tree_of_marks(history):
    f = filled(history)
    found = outline(f.index, 1000)
    assert len(found) == len(f.index)
    for place, mark in enumerate(found):
        assert mark.parent < place
        assert mark.parent == -1 or found[mark.parent].position < mark.position
    edges = sorted((m.position, m.parent.position if m.parent else -1) for m in f.index.marks())
    assert sorted((m.position, found[m.parent].position if m.parent >= 0 else -1) for m in found) == edges


@given(history=histories, limit=st.integers(0, 12))
def test_it_stays_below_its_limit_with_those_used_last_and_what_they_go_on_from(history, limit):
    f = filled(history)
    found = outline(f.index, limit)
    assert len(found) <= limit
    newest = max(f.index.marks(), key=lambda m: m.clock)
    depth, above = 0, newest
    while above is not None:
        depth, above = depth + 1, above.parent
    clocks = [m.clock for m in f.index.marks()]
    if depth <= limit and clocks.count(newest.clock) == 1:
        assert newest.position in [m.position for m in found]


@given(history=histories)
def test_the_same_cache_gives_the_same_picture_whatever_the_order_it_came_about(history):
    ways = {(shared, way, more): (shared, way, more, 1) for shared, way, more, _ in history}
    forth, back = filled(list(ways.values())), filled(list(ways.values())[::-1])
    assert outline(forth.index, 1000) == outline(back.index, 1000)


def test_it_holds_no_token():
    f = filled([(7, 1, 5, 0)])
    assert set(vars(outline(f.index, 9)[0])) == {"position", "kind", "hits", "in_use", "superseded", "parent"}
