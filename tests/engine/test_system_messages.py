"""System messages that come late, as agents send them: refused and forgotten by many templates, never by us."""

from __future__ import annotations

import pytest

from statemark.errors import InvalidRequestError
from tests.engine.chat_templates import ALTERNATING, CHATML, REASONING
from tests.engine.chats import msg, pieces, prompt

FORGETFUL = """\
{% if messages[0].role == 'system' %}{{ '<|im_start|>' + messages[0].content }}{% endif %}
{% for message in messages if message.role != 'system' %}{{ '<|im_start|>' + message.content }}{% endfor %}
"""


def test_a_template_that_takes_them_gets_them_as_they_came() -> None:
    made = prompt(CHATML, [msg("user", "hi"), msg("system", "be brief")])
    assert made.text.endswith("hi<|im_end|>\n<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("source", [REASONING, FORGETFUL])
def test_else_they_end_the_turn_before_them(source: str) -> None:
    talk = [msg("system", "sys"), msg("system", "more"), msg("user", "hi"), msg("system", "be brief")]
    made = prompt(source, talk)
    assert "sys\n\nmore" in made.text
    assert "hi\n\n<system-reminder>\nbe brief\n</system-reminder>" in made.text
    assert made.text.count("be brief") == 1


def test_behind_a_tool_result_it_belongs_to_that_and_behind_an_answer_it_is_a_turn() -> None:
    talk = [msg("user", "hi"), msg("assistant", "a"), msg("tool", "result"), msg("system", "one")]
    assert "<result>\nresult\n\n<system-reminder>\none\n</system-reminder>\n</result>" in prompt(REASONING, talk).text
    talk = [msg("user", "hi"), msg("assistant", "a"), msg("system", "one"), msg("user", "on")]
    assert "<|im_start|>user\n<system-reminder>\none\n</system-reminder><|im_end|>\n<|im_start|>user\non" in (
        prompt(REASONING, talk).text
    )


def test_the_next_prompt_begins_like_this_one() -> None:
    """Which is why they aren't put in front."""
    talk = [msg("system", "sys"), msg("user", "hi"), msg("system", "one")]
    first = prompt(REASONING, talk)
    later = prompt(REASONING, [*talk, msg("assistant", "a"), msg("user", "on"), msg("system", "two")])
    assert pieces(later)[: len(pieces(first)) - 1] == pieces(first)[:-1]


def test_a_beginning_of_an_answer_is_continued_behind_them() -> None:
    talk = [msg("system", "sys"), msg("user", "hi"), msg("system", "one"), msg("assistant", "It is")]
    assert prompt(REASONING, talk, add_generation_prompt=False, continue_final_message=True).text.endswith("It is")


def test_what_no_form_of_them_can_satisfy_is_said_of_the_form_that_came() -> None:
    with pytest.raises(InvalidRequestError, match="there is no user message"):
        prompt(REASONING, [msg("system", "sys"), msg("system", "more")])
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        prompt(ALTERNATING, [msg("user", "hi"), msg("assistant", "a"), msg("system", "one"), msg("user", "on")])
