"""The tour's document: of any size, with one right answer to each question, in the form the bundled model knows."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training import words
from training.facts import make_document as training_document

from statemark.demo.document import SECTION, SMALLEST, Question, make_document

SIZES = st.integers(SMALLEST, SECTION)


def facts(text: str) -> dict[str, str]:
    lines = [line for line in text.split("\n") if not line.startswith("# ")]
    pairs = [tuple(line.removeprefix("- ").rsplit(" ", 1)) for line in lines]
    assert len({key for key, _ in pairs}) == len(pairs), "a key is used twice"
    return dict(pairs)


@given(SIZES)
def test_every_question_is_about_another_fact_and_its_answer_is_there(section: int) -> None:
    document = make_document(section)
    known = facts(document.text)
    assert len(known) == 3 * section
    asked = []
    for question in (*document.questions, document.other):
        (key,) = [key for key in known if re.search(rf"\b{key}\b", question.text)]
        assert known[key] == question.value
        assert question.is_right(question.answer)
        asked.append(key)
    assert len(set(asked)) == len(asked)


@given(SIZES)
def test_a_larger_document_has_the_facts_of_a_smaller_one(section: int) -> None:
    assert facts(make_document(section).text).items() <= facts(make_document(SECTION).text).items()


@pytest.mark.parametrize("section", [SMALLEST - 1, SECTION + 1])
def test_other_sizes_are_refused(section: int) -> None:
    with pytest.raises(ValueError, match=f"not {section}"):
        make_document(section)


@pytest.mark.parametrize(
    ("value", "answer", "right"),
    [
        ("14", "The vase is on shelf 14.", True),
        ("14", "14", True),
        ("14", "The vase is on shelf 140.", False),
        ("14", "The vase is on shelf 214.", False),
        ("14", "It leaves at 14:05.", False),
        ("05", "It leaves at 14:05.", False),
        ("14:05", "It leaves at 14:05.", True),
        ("14", "", False),
    ],
)
def test_right_means_the_whole_value(value: str, answer: str, right: bool) -> None:
    assert Question("?", "", value).is_right(answer) is right


def skeleton(text: str) -> str:
    """A line or a sentence without its names and values."""
    names = {word for group in vars(words).values() if isinstance(group, list) for word in group}
    return re.sub(r"[A-Za-z]+|\d+", lambda m: "_" if m[0] in names or m[0].isdigit() else m[0], text)


def test_its_form_is_one_that_the_bundled_model_was_trained_on() -> None:
    """A line or a question of another form would be a test of the model, not of the cache."""
    lines, questions, answers = set(), set(), set()
    for seed in range(60):
        made = training_document(random.Random(seed), 40)
        lines |= {skeleton(line) for line in made.text.split("\n")}
        for question in (question for fact in made.facts for question in fact.questions):
            questions |= {skeleton(question.text), skeleton(question.follow_up)}
            answers.add(skeleton(question.answer))
    document = make_document(SECTION)
    asked = (*document.questions, document.other)
    assert {skeleton(line) for line in document.text.split("\n")} <= lines
    assert {skeleton(question.text) for question in asked} <= questions
    assert {skeleton(question.answer) for question in asked} <= answers
