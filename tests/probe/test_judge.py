"""The judge on made-up measurements: which sizes in which cells lead to which verdict, and what never matters."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemark.probe.answer import Shift
from statemark.probe.judge import (
    ALONE,
    COLD,
    EXIT_CODES,
    FOREIGN,
    LARGE,
    OWN,
    WORDS,
    Observation,
    Scale,
    contaminated,
    judge,
)

EDIT, FOREIGN_SHIFT = 2.0, 3.0
SCALE = Scale(((1, EDIT),), FOREIGN_SHIFT)
sizes = st.floats(1e-7, 10.0)


def seen(cell: str, size: float = 0.0, *, valid: bool = True, run: int = 1) -> Observation:
    shift = Shift(size, 0) if size else Shift()
    return Observation(
        cell=cell, label="", prompt=100, cached=50, run=run, shift=shift, valid=valid, why="" if valid else "planted"
    )


def clean() -> list[Observation]:
    return [seen(cell) for cell in (*COLD, *OWN, *FOREIGN)]


def verdict(observations):
    return judge(observations, SCALE)


@st.composite
def measured(draw):
    cell = draw(st.sampled_from([*COLD, *OWN, *FOREIGN]))
    return seen(cell, draw(st.one_of(st.just(0.0), sizes)), valid=draw(st.booleans()))


histories = st.lists(measured(), max_size=12)


def test_equal_everywhere_is_exact():
    assert verdict(clean()).kind == "exact"


@given(histories, st.randoms())
def test_the_order_of_cells_never_matters(history, shuffle: random.Random):
    mixed = list(history)
    shuffle.shuffle(mixed)
    a, b = verdict(history), verdict(mixed)
    assert (a.kind, a.cells, a.control, a.largest) == (b.kind, b.cells, b.control, b.largest)


@given(histories)
def test_exact_needs_every_valid_answer_equal_and_every_needed_cell(history):
    result = verdict(history)
    valid = [o for o in history if o.valid]
    if result.kind == "exact":
        assert all(o.shift.exact for o in valid)
        assert {"repeat", "again", "writer"} <= {o.cell for o in valid}
        assert all(o.valid for o in history)
    assert result.kind in EXIT_CODES
    assert result.reasons


def boundary(shared: int, *, cached: int) -> Observation:
    why = "" if cached else ALONE
    return replace(seen("boundary", valid=bool(cached)), shared=shared, cached=cached, prompt=shared + 27, why=why)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.integers(1, 3000))
def test_prefixes_that_are_too_short_to_be_reused_cost_no_verdict_and_a_miss_among_hits_does(missed, least):
    calm = [replace(o, shared=3000) for o in clean()]
    result = verdict([*calm, boundary(least, cached=1), *(boundary(n, cached=0) for n in missed)])
    short = [n for n in missed if n < least]
    if len(short) == len(missed):
        assert result.kind == "exact"
        assert f"up to {max(missed):,} token" in result.reasons[-1]
    else:
        assert result.kind == "invalid"


def test_a_miss_is_no_matter_of_length_where_no_prefix_was_reused():
    calm = [replace(o, cached=0) for o in clean() if o.cell != "boundary"]
    assert verdict([*calm, boundary(500, cached=0)]).kind == "invalid"


@given(histories, st.sampled_from([*OWN, *FOREIGN]), st.floats(LARGE * EDIT * 1.01, 5))
def test_a_large_shift_on_a_hit_that_no_cold_cell_shows_is_contamination(history, cell, size):
    calm = [o for o in history if o.shift.exact]
    assert verdict([*clean(), *calm, seen(cell, size)]).kind == "contaminated"


@given(histories)
def test_contamination_is_never_taken_back_by_measuring_a_clean_cell_more(history):
    if verdict(history).kind == "contaminated":
        assert verdict([*history, *clean()]).kind == "contaminated"


@given(st.sampled_from(COLD), st.floats(1e-6, LARGE * EDIT / 10), st.floats(0.1, 3.9))
def test_what_cold_cells_show_as_well_is_drift(cell, size, factor):
    result = verdict([*clean(), seen(cell, size), seen("again", size * factor), seen("writer", size * factor)])
    assert result.kind == "drift"
    assert result.control == size
    assert WORDS[cell] in result.reasons[-1]


@given(st.floats(1e-6, LARGE * EDIT / 2))
def test_it_matters_who_wrote_where_own_hits_are_exact(size):
    """What the 3.2k-token prefix with 1600-token blocks showed: alone bit-stable, after another writer not."""
    result = verdict([*clean(), seen("writer", size)])
    assert (result.kind, result.cells) == ("contaminated", ("writer",))


@given(st.floats(1e-6, LARGE * EDIT / 5), st.floats(0.2, 3.9))
def test_a_small_shift_of_hits_whoever_wrote_is_drift(size, factor):
    result = verdict([*clean(), seen("again", size), seen("boundary", size * factor)])
    assert result.kind == "drift"
    assert "whoever wrote" in result.reasons[-1]


@given(st.sampled_from(COLD), st.floats(LARGE * FOREIGN_SHIFT * 1.01, 10))
def test_a_cold_answer_that_moves_as_much_as_another_document_is_contaminated(cell, size):
    result = verdict([*clean(), seen(cell, size)])
    assert (result.kind, result.cells) == ("contaminated", (cell,))


def test_a_prefix_of_another_salt_is_contamination_whatever_it_says():
    shared = Observation(cell="salt", label="", prompt=10, cached=9, shift=Shift(0.0, 0))
    result = verdict([shared])
    assert (result.kind, result.exit_code) == ("contaminated", 4)
    assert "9 tokens" in result.reasons[0]


@pytest.mark.parametrize("cell", ["repeat", "again", "writer"])
def test_without_a_needed_cell_there_is_no_verdict(cell):
    result = verdict([o for o in clean() if o.cell != cell])
    assert result.kind == "invalid"
    assert WORDS[cell] in result.reasons[0]


@given(st.sampled_from([*OWN, *FOREIGN, *COLD]))
def test_one_invalid_cell_is_no_clean_bill(cell):
    result = verdict([*clean(), seen(cell, valid=False)])
    assert (result.kind, result.exit_code) == ("invalid", 5)
    assert any("planted" in reason for reason in result.reasons)


def test_documents_that_show_nothing_are_invalid():
    assert judge(clean(), Scale(((1, 0.0),), 0.0)).kind == "invalid"


@given(histories)
def test_invalid_cells_weigh_nothing_in_sizes(history):
    spoiled = [replace(o, valid=False, why="planted") for o in history]
    assert verdict(spoiled).largest == 0.0


@given(histories)
def test_contaminated_observations_and_the_verdict_agree(history):
    assert bool(contaminated(history, SCALE)) == (verdict(history).kind == "contaminated")


@given(st.integers(1, 2000), st.integers(1, 2000))
def test_an_edit_weighs_less_the_more_tokens_stand_behind_it(near, far):
    scale = Scale(((1, 4.0), (27, 2.0), (300, 0.25)), 3.0)
    near, far = min(near, far), max(near, far)
    assert scale.edit(near) >= scale.edit(far)


def test_the_same_shift_is_rounding_right_behind_the_hit_and_foreign_far_from_it():
    scale = Scale(((1, 4.0), (300, 0.25)), 3.0)
    near, far = (replace(seen("again", 0.3), prompt=50 + behind, cached=50) for behind in (1, 300))
    assert judge([*clean(), near], scale).kind == "drift"
    assert judge([*clean(), far], scale).kind == "contaminated"


@given(st.floats(1e-6, LARGE * EDIT / 2), st.booleans())
def test_twins_tell_who_wrote_from_how_long_it_was(size, same):
    written = replace(seen("writer", size), digest="a")
    twin = replace(seen("twin", size), digest="a" if same else "b")
    result = verdict([*clean(), written, twin])
    assert result.kind == ("drift" if same else "contaminated")
    assert ("chunk shape" in result.reasons[-1]) == same


@given(st.floats(LARGE * EDIT * 1.01, 10))
def test_no_twin_explains_a_large_shift(size):
    written, twin = (replace(seen(cell, size), digest="a") for cell in ("writer", "twin"))
    assert verdict([*clean(), written, twin]).kind == "contaminated"


def test_drift_of_later_turns_alone_is_told_from_what_cold_answers_explain():
    result = verdict([*clean(), seen("mates", 1e-6), seen("turns", 0.02)])
    assert result.kind == "drift"
    assert "token by token" in result.reasons[-1]


def test_an_unused_cache_comes_with_advice():
    idle = replace(seen("again", valid=False), why="nothing was reused, although it could have been")
    result = verdict([*clean(), idle])
    assert result.kind == "invalid"
    assert any("--limit" in reason for reason in result.reasons)
