"""Digests and distances of answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statemark.client.reply import Token
from statemark.probe.answer import answer_of, compare

logprobs = st.floats(-20, 0, allow_nan=False)
tops = st.dictionaries(st.sampled_from(["a", "b", "ab", "c", "dd", "e", "f"]), logprobs, min_size=1, max_size=6)


@st.composite
def tokens(draw):
    top = draw(tops)
    label = draw(st.sampled_from(sorted(top)))
    return Token(label, top[label], tuple(top.items()))


answers = st.lists(tokens(), max_size=5)


@given(answers)
def test_an_answer_equals_itself(found):
    assert compare(answer_of(found), answer_of(found)).exact
    assert compare(answer_of(found), answer_of(found)).size == 0


@given(answers, answers)
def test_distance_is_symmetric_and_zero_only_for_equals(a, b):
    x, y = answer_of(a), answer_of(b)
    assert compare(x, y) == compare(y, x)
    assert compare(x, y).exact == (x.digest == y.digest)


@given(answers.filter(bool), st.floats(1e-6, 1))
def test_one_moved_number_is_seen_and_measured(found, by):
    first = found[0]
    label, old = first.top[0]
    moved = Token(first.label, first.logprob, ((label, old - by), *first.top[1:]))
    shift = compare(answer_of([moved, *found[1:]]), answer_of(found))
    assert shift.first == 0
    assert abs(shift.size - by) < 1e-9


@given(answers)
def test_nothing_that_was_said_can_be_read(found):
    said = {t.label for t in found}
    kept = answer_of(found)
    assert not said & {p.chosen for p in kept.places}
    assert not said & {label for p in kept.places for label in p.top}


def test_what_follows_another_choice_has_another_prefix_and_does_not_count():
    a = [Token("x", -1.0, (("x", -1.0), ("y", -1.5))), Token("z", -0.1, (("z", -0.1),))]
    b = [Token("y", -1.5, (("x", -1.0), ("y", -1.5))), Token("w", -9.0, (("z", -9.0),))]
    shift = compare(answer_of(a), answer_of(b))
    assert (shift.text, shift.size, shift.first) == (0, 0.0, 0)


def test_an_answer_that_ends_early_differs_in_text():
    a = [Token("x", -1.0, (("x", -1.0),))] * 3
    assert compare(answer_of(a), answer_of(a[:2])).text == 2
    assert compare(answer_of(a), answer_of([])).size > 10
