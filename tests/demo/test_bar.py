"""The bar that shows where marks lie: every token in some column, every mark under it, never wider than asked."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from statemark.demo import bar
from statemark.demo.tour import Segment

CHAT = (
    Segment("system", 0, 1480),
    Segment("user", 1480, 1500),
    Segment("assistant", 1500, 1520),
    Segment("user", 1520, 1540),
    Segment("answer", 1540, 1545),
)


def rows(segments: tuple[Segment, ...], reused: int, marks: list[int], width: int = 78) -> list[str]:
    return bar(segments, reused, marks, width).plain.split("\n")


def test_a_chat() -> None:
    assert rows(CHAT, 1500, [740, 1480, 1500, 1540, 1544]) == [
        "|                     system                     |  user | answer|  user | > |",
        "|================================================|=======|.......|.......|...|",
        "                         ^                       ^       ^               ^  ^",
    ]


def test_nothing_reused_and_nothing_marked() -> None:
    drawn = rows((Segment("prompt", 0, 100),), 0, [], 20)
    assert drawn == ["|      prompt      |", "|..................|", ""]


def test_a_narrow_terminal_gets_a_narrow_bar() -> None:
    assert rows(CHAT, 1500, [1480, 1544], 20) == [
        "|syst|use|ans|use|>|",
        "|====|===|...|...|.|",
        "     ^            ^",
    ]


@st.composite
def prompts(draw: st.DrawFn) -> tuple[tuple[Segment, ...], int, list[int]]:
    lengths = draw(st.lists(st.integers(1, 2000), min_size=1, max_size=9))
    segments, at = [], 0
    for length in lengths:
        segments.append(Segment(draw(st.sampled_from(["system", "user", "assistant", "answer"])), at, at + length))
        at += length
    marks = draw(st.lists(st.integers(1, at), max_size=20, unique=True))
    return tuple(segments), draw(st.integers(0, at - 1)), marks


@given(prompts(), st.integers(10, 120))
def test_any_prompt(prompt: tuple[tuple[Segment, ...], int, list[int]], width: int) -> None:
    segments, reused, marks = prompt
    names, use, below = rows(segments, reused, marks, width)
    assert len(names) == len(use) == max(width, 2 * len(segments) + 1)
    assert len(below) <= len(names)
    lines = [i for i, sign in enumerate(names) if sign == "|"]
    assert [i for i, sign in enumerate(use) if sign == "|"] == lines
    assert len(lines) == len(segments) + 1
    assert use.replace("|", "").strip("=").strip(".") == "", "reused columns come first"
    assert "." in use
    assert below.count("^") <= len(marks)
    assert bool(marks) == ("^" in below)
    for segment, (low, high) in zip(segments, pairwise(lines), strict=True):
        inside = [mark for mark in marks if segment.begin < mark <= segment.end]
        assert bool(inside) == ("^" in below[low + 1 : high + 1])
        if segment.end in inside:
            assert below[high] == "^"
        assert (set(use[low + 1 : high]) == {"="}) == (segment.end <= reused)
