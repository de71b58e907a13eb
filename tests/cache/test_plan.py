"""Which marks a prompt gets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from statemark.cache import plan_marks


def kept(*args, **options):
    return [p for p, _ in plan_marks(*args, **options)]


@given(
    st.integers(1, 5000),
    st.lists(st.integers(-5, 6000), max_size=80),
    st.integers(0, 4999),
    st.integers(0, 40),
    st.one_of(st.none(), st.integers(0, 6000)),
    st.sampled_from([0, 100, 512]),
)
def test_within_the_prompt_ascending_and_within_the_limit(prompt, turns, start, limit, junction, spacing):
    start = min(start, prompt - 1)
    marks = plan_marks(prompt, turns, start, limit, junction=junction, spacing=spacing)
    positions = [p for p, _ in marks]
    assert positions == sorted(set(positions))
    assert all(start < p <= prompt - 1 for p in positions)
    assert len(marks) <= limit
    wanted = {p for p in turns if start < p < prompt - 1}
    assert {p for p, kind in marks if kind in ("turn", "system")} <= wanted
    assert [p for p, kind in marks if kind == "replay"] == ([prompt - 1] if limit and prompt - 1 > start else [])
    if junction is not None and start < junction < prompt - 1 and limit > 1:
        assert (junction, "junction") in marks
    if limit > 80 + 40:
        assert wanted <= set(positions)


def test_with_little_room_the_replay_then_the_last_then_the_first_turn():
    assert plan_marks(100, [10, 40, 70], 0, 1) == [(99, "replay")]
    assert plan_marks(100, [10, 40, 70], 0, 2) == [(70, "turn"), (99, "replay")]
    assert plan_marks(100, [10, 40, 70], 0, 3) == [(10, "system"), (70, "turn"), (99, "replay")]
    assert plan_marks(100, [10, 40, 70], 0, 4) == [(10, "system"), (40, "turn"), (70, "turn"), (99, "replay")]
    assert plan_marks(100, [70], 0, 4) == [(70, "turn"), (99, "replay")], "the only turn is the generation header's"


def test_e9_any_cut_loses_at_most_half_of_what_is_shared():
    for prompt, turns in ((32_240, []), (83_447, []), (258_000, [4_000, 257_996]), (6500, list(range(100, 6500, 100)))):
        marks = kept(prompt, turns, 0, 12)
        for cut in range(1024, prompt, 13):
            below = max(p for p in marks if p <= cut)
            assert cut - below <= cut / 2, (cut, below)


def test_e9_the_numbers_of_the_report():
    """Eight checkpoints near the tail lost 30,646 tokens; a change at 16,274 of 32,240 found its checkpoint gone."""
    for prompt, cut in ((83_447, 30_646), (32_240, 16_274), (20_000, 11_586)):
        assert max(p for p in kept(prompt, [], 0, 9) if p <= cut) >= cut / 2


def test_near_the_end_there_is_a_mark_for_reminders_that_change():
    assert (9_744, "near end") in plan_marks(10_000, [9_996], 0, 8)
    assert "near end" not in dict(plan_marks(10_000, [9_700, 9_996], 0, 8)).values(), "a turn lies there"
    assert [p for p, kind in plan_marks(10_000, [9_996], 0, 100) if kind == "near end"] == [9_744, 9_936]


def test_history_gets_denser_with_room_and_keeps_off_what_is_there():
    few, many = (len(kept(100_000, [], 0, n, spacing=1_000)) for n in (16, 1_000))
    assert (few <= 16, many > 90) == (True, True)
    marks = kept(100_000, [50_010], 0, 1_000, spacing=1_000)
    assert 50_000 not in marks
    gaps = [b - a for a, b in pairwise(marks[3:-2])]
    assert max(gaps) <= 1_500, "each gap but those around other marks is one step"


def test_a_turn_that_appends_little_gets_few_marks():
    assert plan_marks(50_200, [50_196], 50_000, 100, spacing=1_000) == [(50_196, "turn"), (50_199, "replay")]
