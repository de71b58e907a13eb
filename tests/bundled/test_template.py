"""The chat template, rendered as the server does (sandboxed Jinja2): roles, tools, think sections dropped."""

from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from statemark import bundled


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    def fail(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = fail
    template = environment.from_string((bundled.path() / "chat_template.jinja").read_text())
    return template.render(messages=messages, **options)


USER = {"role": "user", "content": "Where is the blue lamp?"}
ANSWER = {"role": "assistant", "content": "<think>\n- blue lamp: shelf 14\n</think>\n\nThe blue lamp is on shelf 14."}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def test_user_with_generation_header() -> None:
    assert render([USER], add_generation_prompt=True) == (
        "<|im_start|>user\nWhere is the blue lamp?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_thinking_switched_off() -> None:
    text = render([USER], add_generation_prompt=True, enable_thinking=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_system_comes_first() -> None:
    text = render([{"role": "system", "content": "Answer briefly."}, USER])
    assert text == (
        "<|im_start|>system\nAnswer briefly.<|im_end|>\n<|im_start|>user\nWhere is the blue lamp?<|im_end|>\n"
    )


def test_think_section_of_the_last_answer_stays() -> None:
    assert render([USER, ANSWER]).endswith(
        "<|im_start|>assistant\n<think>\n- blue lamp: shelf 14\n</think>\n\nThe blue lamp is on shelf 14.<|im_end|>\n"
    )


@pytest.mark.parametrize("form", ["in content", "apart"])
def test_think_section_is_dropped_when_a_new_user_message_arrives(form: str) -> None:
    answer = dict(ANSWER)
    if form == "apart":
        answer = {"role": "assistant", "reasoning_content": "- blue lamp: shelf 14", "content": "It is on shelf 14."}
    text = render([USER, answer, {"role": "user", "content": "And the red chair?"}], add_generation_prompt=True)
    assert "- blue lamp" not in text
    assert text.count("<think>") == 1
    assert "<|im_start|>assistant\nThe blue lamp is on" in text or "<|im_start|>assistant\nIt is on" in text


def test_a_prompt_extends_the_previous_one_up_to_the_answer() -> None:
    """The stored prefix of a chat is the rendered history without the generation header."""
    first = render([USER])
    second = render([USER, ANSWER, {"role": "user", "content": "And the red chair?"}])
    assert second.startswith(first)


def test_tools_stand_in_the_system_message() -> None:
    text = render([{"role": "system", "content": "Be brief."}, USER], tools=[TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n<tools>\n{")
    assert '"name": "look_up"' in text
    assert text.index("</tools>") < text.index("<|im_start|>user")
    assert text.count("<|im_start|>system") == 1


def test_tool_calls_and_responses() -> None:
    call = {"function": {"name": "look_up", "arguments": {"key": "lamp"}}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "reasoning_content": "look", "tool_calls": [call]},
        {"role": "tool", "content": "14"},
        {"role": "tool", "content": "15"},
    ]
    text = render(messages, add_generation_prompt=True)
    # A tool's answer is no new user message: the reasoning before the call stays.
    assert "<think>\nlook\n</think>" in text
    assert '<tool_call>\n{"name": "look_up", "arguments": {"key": "lamp"}}\n</tool_call><|im_end|>' in text
    assert (
        "<|im_start|>user\n<tool_response>\n14\n</tool_response>\n<tool_response>\n15\n</tool_response><|im_end|>\n"
        in text
    )


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Where is "}, {"type": "text", "text": "the lamp?"}]
    assert render([{"role": "user", "content": parts}]) == "<|im_start|>user\nWhere is the lamp?<|im_end|>\n"


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "captain", "content": "x"}],
        [USER, {"role": "system", "content": "late"}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    ],
)
def test_what_the_model_was_not_made_for_is_an_error(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        render(messages)
