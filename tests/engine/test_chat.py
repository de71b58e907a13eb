"""Rendering as transformers does it, and what is said about messages and templates that can't be served."""

from __future__ import annotations

import re

import pytest

from statemark.engine.chat import ChatTemplate, plain_messages
from statemark.errors import ConfigurationError, InvalidRequestError
from tests.engine.chat_templates import ALTERNATING, CHATML, FOOTER, PLAIN, REASONING
from tests.engine.chats import ENCODE, msg, pieces, prompt
from tests.engine.tiny_tokenizers import byte_level

# --- rendering --------------------------------------------------------------------------------------------------


def test_a_plain_chat() -> None:
    made = prompt(CHATML, [msg("system", "be brief"), msg("user", "hi")])
    assert made.text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert made.token_ids == byte_level().encode(made.text, add_special_tokens=False)


def test_what_templates_may_use() -> None:
    source = """\
{{- bos_token }}{% for m in messages %}
{%- if m.content == 'skip' %}{% continue %}{% endif %}
{%- if m.content == 'stop' %}{% break %}{% endif %}
{%- generation %}{% set inner = 1 %}{{ m.content }}{% endgeneration %}
{%- endfor %}{{ inner is defined }} {{ {'b': 'é<>', 'a': 1} | tojson }} {{ {'a': [1]} | tojson(indent=1) }}
{{- ' ' + strftime_now('%Y') }}
"""
    template = ChatTemplate(source, {"bos_token": "<s>"})
    made = template.prompt(ENCODE, [msg("user", text) for text in ("a", "skip", "b", "stop", "c")])
    assert re.fullmatch(r'<s>abFalse \{"b": "é<>", "a": 1\} \{\n "a": \[\n  1\n \]\n\} 20\d\d', made.text)


def test_absent_things_are_none_and_arguments_arrive() -> None:
    source = "{{ tools }}|{{ documents }}|{{ enable_thinking }}|{{ add_generation_prompt }}"
    made = prompt(source, [msg("user")], template_kwargs={"enable_thinking": False})
    assert made.text == "None|None|False|True"
    assert prompt("{{ tools | tojson }}", [msg("user")], tools=[{"a": 1}]).text == '[{"a": 1}]'
    assert prompt("{{ tools }}", [msg("user")], tools=[]).text == "None"


@pytest.mark.reference
@pytest.mark.parametrize("source", [CHATML, REASONING, ALTERNATING, FOOTER, PLAIN])
def test_transformers_renders_the_same(source) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [msg("system", "s"), msg("user", "  q "), msg("assistant", "a\n"), msg("user", "é<>&")]
    theirs, _ = utils.render_jinja_template([messages], chat_template=source, add_generation_prompt=True)
    assert prompt(source, messages).text == theirs[0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ messages[5].content.upper() }}", "has no element 5"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
    ],
)
def test_what_a_template_says_against_the_messages(source, message) -> None:
    with pytest.raises(InvalidRequestError, match=f"the chat template refuses these messages: .*{message}") as caught:
        prompt(source, [msg("user", "a")])
    assert caught.value.param == "messages"


def test_a_template_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="syntax error in line 2"):
        ChatTemplate("a\n{% if %}")


def test_the_callers_messages_stay_as_they_are() -> None:
    messages = [msg("user", [{"type": "text", "text": "a"}], reasoning="x")]
    prompt(CHATML, messages)
    assert messages == [msg("user", [{"type": "text", "text": "a"}], reasoning="x")]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_reserved_names(name) -> None:
    with pytest.raises(InvalidRequestError, match=f"can't set {name}"):
        prompt(CHATML, [msg("user", "a")], template_kwargs={name: 1})


# --- messages ---------------------------------------------------------------------------------------------------


def test_messages_are_made_plain() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    plain = plain_messages(
        [
            msg("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "r"},
        ]
    )
    assert plain[0] == msg("user", "ab")
    assert plain[1]["content"] == ""
    assert plain[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert plain[1]["reasoning_content"] == plain[1]["reasoning"] == "r"


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages must hold at least one message"),
        ("hello", "messages must be a list"),
        (msg("user", "a"), "messages must be a list"),
        (["hello"], r"messages\[0\] must be an object"),
        ([msg("user", "a"), {"content": "b"}], r"messages\[1\].role must be a string"),
        ([msg("user", 5)], r"messages\[0\].content must be a string"),
        ([msg("user", [{"type": "image_url"}])], r"messages\[0\].content\[0\] is not a text part"),
        (
            [msg("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": "{"}}])],
            r"messages\[0\].tool_calls\[0\].function.arguments is not valid JSON",
        ),
    ],
)
def test_messages_that_are_none(messages, where) -> None:
    with pytest.raises(InvalidRequestError, match=where):
        plain_messages(messages)


def test_tools_must_be_objects() -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        prompt(CHATML, [msg("user", "a")], tools=[print])  # type: ignore[list-item]


# --- going on with the last message -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "end"),
    [(CHATML, "<|im_start|>assistant\nIt is "), (ALTERNATING, "[/INST] It is"), (FOOTER, "assistant\nIt is ")],
)
def test_the_last_message_can_be_continued(source, end) -> None:
    messages = [msg("user", "q"), msg("assistant", "It is ")]
    made = prompt(source, messages, add_generation_prompt=False, continue_final_message=True)
    assert made.text.endswith(end)
    assert pieces(made)[-1].endswith("It is" if source is ALTERNATING else "It is ")


def test_continuing_excludes_a_new_message() -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        prompt(CHATML, [msg("user", "q")], continue_final_message=True)


def test_continuing_what_is_not_shown() -> None:
    with pytest.raises(InvalidRequestError, match="doesn't show its content"):
        prompt("nothing", [msg("user", "q")], add_generation_prompt=False, continue_final_message=True)
