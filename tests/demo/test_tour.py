"""The tour's figures on a model with random weights: what holds for every model. Times are only looked for."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from statemark.demo import Caught, Faulty, Stage, Tour
from statemark.demo.fault import WrongPosition, complaints
from statemark.demo.stage import ANSWER


class Whole:
    """A tour that was taken to its end."""

    def __init__(self, folder: Path) -> None:
        self.tour = Tour(Stage(folder, threads=1))
        self.turns = list(self.tour.chat())
        self.other = self.tour.second_client()
        self.faulty: list[Faulty] = list(self.tour.with_fault())
        self.caught: Caught = self.tour.with_checks()


@pytest.fixture(scope="module")
def whole(tiny: Path) -> Whole:
    return Whole(tiny)


def test_every_answer_is_the_same_with_the_cache_and_without(whole: Whole) -> None:
    for turn in [*whole.turns, whole.other]:
        assert turn.equal
        assert turn.warm.text == turn.cold.text
        assert turn.cold.cached == 0
        assert turn.warm.seconds > 0
        assert turn.cold.seconds > 0


def test_the_document_is_long_and_leaves_room_for_the_chat(whole: Whole) -> None:
    first, last = whole.turns[0], whole.turns[-1]
    assert 1400 < first.prompt_tokens < 1600
    assert last.prompt_tokens + ANSWER <= whole.tour.stage.max_model_len


def test_each_turn_goes_on_from_a_mark_of_the_one_before(whole: Whole) -> None:
    assert whole.turns[0].warm.cached == 0
    for before, turn in zip(whole.turns, whole.turns[1:], strict=False):
        assert turn.warm.cached in before.marks
        assert turn.warm.cached >= before.segments[-1].begin, "all messages of the turn before"
        assert turn.prompt_tokens - turn.warm.cached < 300


def test_the_second_client_reuses_the_document_and_no_more(whole: Whole) -> None:
    system = whole.other.segments[0]
    assert system.role == "system"
    assert whole.other.warm.cached == system.end


def test_messages_cover_the_prompt(whole: Whole) -> None:
    for count, turn in enumerate(whole.turns, 1):
        assert [s.role for s in turn.segments] == ["system", "user", *["assistant", "user"] * (count - 1), "answer"]
        cuts = [s.begin for s in turn.segments] + [turn.segments[-1].end]
        assert cuts == sorted(set(cuts))
        assert (cuts[0], cuts[-1]) == (0, turn.prompt_tokens)


def test_marks_lie_at_the_ends_of_messages_and_before_the_last_token(whole: Whole) -> None:
    for turn in [*whole.turns, whole.other]:
        assert list(turn.marks) == sorted(set(turn.marks))
        assert turn.marks[-1] == turn.prompt_tokens - 1
        assert {s.end for s in turn.segments[:2]} <= set(turn.marks)


def test_the_fault_takes_a_state_of_another_position_and_changes_the_numbers(whole: Whole) -> None:
    assert len(whole.faulty) == len(whole.turns) + 1
    for result in whole.faulty:
        assert result.planted is not None
        assert 0 < result.planted.taken < result.planted.position
        assert result.planted.position == result.reply.cached == result.turn.prompt_tokens - 1
        assert not result.equal
        assert result.reply.text


def test_with_stamps_compared_the_fault_is_dropped_and_the_answer_is_right(whole: Whole) -> None:
    caught = whole.caught
    assert caught.dropped == 1
    assert caught.result.planted is not None
    assert caught.result.equal
    assert 0 < caught.result.reply.cached < caught.result.planted.position
    (said,) = caught.said
    assert f"the mark at {caught.result.planted.position} is damaged" in said
    assert f"after {caught.result.planted.taken} tokens" in said


def test_without_the_fault_its_engine_is_exact(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """What differs above is the fault's doing, not that of stamps that nobody compares."""
    monkeypatch.setattr(WrongPosition, "_misplace", lambda *_: None)
    for result in whole.tour.with_fault():
        assert result.planted is None
        assert result.equal
        assert result.reply.cached == result.turn.prompt_tokens - 1


def test_a_planted_fault_leaves_the_checks_on(whole: Whole) -> None:
    executor = whole.tour._faulty.engine.executor
    assert isinstance(executor, WrongPosition)
    assert executor.times == 0
    assert executor.arena.check_stamps is True


def test_complaints_are_heard_only_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("statemark.engine.core")
    with complaints() as heard:
        logger.error("%d of %d", 1, 2)
    logger.error("later")
    assert heard == ["1 of 2"]
    assert [record.getMessage() for record in caplog.records] == ["later"]
