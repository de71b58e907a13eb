"""Which marks a prompt gets."""

from hypothesis import given
from hypothesis import strategies as st

from statemark.cache import plan_marks


@given(st.integers(1, 500), st.lists(st.integers(-5, 600), max_size=80), st.integers(0, 499), st.integers(0, 20))
def test_within_the_prompt_ascending_and_within_the_limit(prompt, turns, start, limit):
    start = min(start, prompt - 1)
    marks = plan_marks(prompt, turns, start, limit)
    positions = [p for p, _ in marks]
    assert positions == sorted(set(positions))
    assert all(start < p <= prompt - 1 for p in positions)
    assert len(marks) <= limit
    wanted = {p for p in turns if start < p < prompt - 1}
    assert {p for p, kind in marks if kind == "turn"} <= wanted
    assert [p for p, kind in marks if kind == "replay"] == ([prompt - 1] if limit and prompt - 1 > start else [])
    if len(wanted) + 1 <= limit:
        assert {p for p, kind in marks if kind == "turn"} == wanted


def test_first_and_last_turn_survive_and_any_cut_loses_at_most_half():
    turns = list(range(100, 6500, 100))  # 64 messages of 100 tokens
    kept = [p for p, kind in plan_marks(6500, turns, 0, 9) if kind == "turn"]
    assert kept[0] == 100
    assert kept[-1] == 6400
    for cut in range(100, 6500):
        below = max(p for p in kept if p <= cut)
        assert cut - below <= cut / 2, (cut, below)


def test_with_little_room_the_replay_then_the_last_then_the_first_turn():
    assert plan_marks(100, [10, 40, 70], 0, 1) == [(99, "replay")]
    assert plan_marks(100, [10, 40, 70], 0, 2) == [(70, "turn"), (99, "replay")]
    assert plan_marks(100, [10, 40, 70], 0, 3) == [(10, "turn"), (70, "turn"), (99, "replay")]
