"""The generators: deterministic, and every answer is in the document that it is about."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training import words
from training.facts import DOMAINS, Document, make_document

SEEDS = st.integers(0, 10**6)
COUNTS = st.integers(2, 120)


def document(seed: int, count: int) -> Document:
    return make_document(random.Random(seed), count)


@settings(deadline=None)
@given(SEEDS, COUNTS)
def test_same_seed_same_document(seed: int, count: int) -> None:
    assert document(seed, count) == document(seed, count)


def test_other_seed_other_document() -> None:
    assert len({document(seed, 10).text for seed in range(50)}) == 50


@settings(deadline=None)
@given(SEEDS, COUNTS)
def test_documents_have_the_facts_asked_for(seed: int, count: int) -> None:
    made = document(seed, count)
    assert len(made.facts) == count
    lines = made.text.split("\n")
    assert [line for line in lines if not line.startswith("# ")] == [fact.line for fact in made.facts]
    titles = {line[2:].split(":")[0] for line in lines if line.startswith("# ")}
    assert titles <= {domain.title for domain in DOMAINS}


@settings(deadline=None)
@given(SEEDS, COUNTS)
def test_every_answer_is_stated_in_its_fact(seed: int, count: int) -> None:
    for fact in document(seed, count).facts:
        tokens = fact.line.replace("|", " ").replace(",", " ").rstrip(".").split()
        for question in fact.questions:
            assert question.value in tokens
            assert question.value in question.answer
            assert question.value in question.thought


@settings(deadline=None)
@given(SEEDS, COUNTS)
def test_a_question_has_one_answer(seed: int, count: int) -> None:
    answers: dict[tuple[str, str], str] = {}
    for fact in document(seed, count).facts:
        for question in fact.questions:
            for text in (question.text, question.follow_up):
                assert answers.setdefault((question.kind, text), question.answer) == question.answer


@settings(deadline=None)
@given(SEEDS, COUNTS)
def test_questions_name_a_key_that_is_in_the_line(seed: int, count: int) -> None:
    for fact in document(seed, count).facts:
        for question in fact.questions:
            key = question.follow_up.removeprefix("And ").removeprefix("the ").removesuffix("?")
            assert key in fact.line
            assert key in question.text
            assert key in question.answer


@pytest.mark.parametrize(
    "group",
    ["COLOURS", "OBJECTS", "VEHICLES", "CITIES", "FIRST_NAMES", "LAST_NAMES", "MACHINES", "STATES"],
)
def test_words_are_unique(group: str) -> None:
    listed = getattr(words, group)
    assert len(set(listed)) == len(listed)
