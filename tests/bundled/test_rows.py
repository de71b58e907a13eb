"""Training rows agree with the chat template, and only what the model has to write counts."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training.facts import make_document
from training.rows import IGNORE, RowMaker, load_tokenizer, make_turns, render_head, render_turn

from tests.bundled.test_template import render

MAKER = RowMaker(load_tokenizer())


def chat(seed: int, turns: int) -> tuple[str, list[Any]]:
    rng = random.Random(seed)
    document = make_document(rng, 6)
    return document.text, make_turns(rng, document, turns)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_rendering_is_the_template_s(seed: int, turns: int) -> None:
    text, asked = chat(seed, turns)
    messages: list[dict[str, Any]] = [{"role": "system", "content": text}]
    ours = render_head(text)
    for i, turn in enumerate(asked):
        messages.append({"role": "user", "content": turn.user})
        if i + 1 < len(asked):
            ours += render_turn(turn.user, turn.question, "history")
        message = {"role": "assistant", "reasoning_content": turn.question.thought, "content": turn.question.answer}
        messages.append(message)
    last = asked[-1]
    assert render(messages) == ours + render_turn(last.user, last.question, "think")
    messages[-1]["reasoning_content"] = ""
    assert render(messages) == ours + render_turn(last.user, last.question, "empty")


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["history", "think", "empty"]))
def test_pieces_encoded_alone_are_the_whole_encoded(seed: int, mode: str) -> None:
    text, asked = chat(seed, 3)
    parts = [render_head(text)] + [render_turn(t.user, t.question, mode) for t in asked]
    assert [i for part in MAKER.encode(parts) for i in part] == MAKER.tokenizer.encode("".join(parts)).ids


@pytest.mark.parametrize("mode", ["history", "think", "empty"])
def test_targets_are_what_follows_the_generation_header(mode: str) -> None:
    _, asked = chat(7, 1)
    piece = MAKER.encode([render_turn(asked[0].user, asked[0].question, mode)])[0]
    row = MAKER.assemble([], [piece], None)
    written = MAKER.tokenizer.decode([int(t) for t in row.targets if t != IGNORE], skip_special_tokens=False)
    question = asked[0].question
    expected = f"{question.answer}<|im_end|>"
    if mode == "think":
        expected = f"{question.thought}\n</think>\n\n{expected}"
    assert written == expected


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([160, 256, 512]))
def test_rows_have_their_length_and_shifted_targets(seed: int, length: int) -> None:
    row = MAKER.training_row(random.Random(seed), length, (2, 20))
    assert len(row.ids) == len(row.targets) == len(row.turn) == length
    counted = row.targets[:-1] != IGNORE
    assert counted.any()
    assert (row.targets[:-1][counted] == row.ids[1:][counted]).all()
    assert ((row.targets == IGNORE) == (row.turn == IGNORE)).all()


def test_rows_are_deterministic() -> None:
    first, second = (MAKER.training_row(random.Random(5), 256, (4, 14)) for _ in range(2))
    assert (first.ids == second.ids).all()
