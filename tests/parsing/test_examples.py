"""Answers as models write them, right and wrong, one by one: what a reader of the documents would want to know."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statemark.parsing import CallArguments, CallBroken, CallEnd, CallStart, Content, Reasoning
from tests.parsing.answers import CallSpec, events_of, found_calls, parsed, parser

F = '{"name": "f", "arguments": {"a": 1}}'
GOOD: list[tuple[str, str, list[CallSpec], str]] = [
    ("hermes", f"<tool_call>\n{F}\n</tool_call>", [("f", {"a": 1})], ""),
    ("hermes", f"<tool_call>{F}", [("f", {"a": 1})], ""),  # the end token came before the end tag
    ("hermes", f"Let me.\n\n<tool_call>\n{F}\n</tool_call>\n", [("f", {"a": 1})], "Let me."),
    ("hermes", f"<tool_call>{F}</tool_call>\n<tool_call>{F}</tool_call>", [("f", {"a": 1})] * 2, ""),
    ("hermes", f"a <tool_call>{F}</tool_call> b", [("f", {"a": 1})], "a b"),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', [("f", {"a": 1})], ""),
    ("hermes", '<tool_call>{"name": "f", "parameters": {}}</tool_call>', [("f", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', [("f", {"a": 1})], ""),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [("f", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})], ""),
    ("hermes", '<tool_call>{"type": "function", "id": 3, "name": "f"}</tool_call>', [("f", {})], ""),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "x\ny\t"}}</tool_call>', [("f", {"a": "x\ny\t"})], ""),
    ("granite", f"<|tool_call|>[{F}, {F}]", [("f", {"a": 1})] * 2, ""),
    ("granite", f"<|tool_call|> [{F}", [("f", {"a": 1})], ""),
    ("granite", f"<tool_call>\n{F}\n</tool_call>", [("f", {"a": 1})], ""),
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nSan\nJosé\n</parameter>\n<parameter=days>\n3\n"
        '</parameter>\n<parameter=tags>\n["a"]\n</parameter>\n</function>\n</tool_call>',
        [("get_weather", {"city": "San\nJosé", "days": 3, "tags": ["a"]})],
        "",
    ),
    ("qwen3_coder", "ok\n<function=f>\n</function>", [("f", {})], "ok"),  # the outer tags left out
    ("qwen3_coder", "<tool_call><function=f></function><function=f></function></tool_call>", [("f", {})] * 2, ""),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=city>5</parameter></function>",
        [("get_weather", {"city": "5"})],
        "",
    ),
    (
        "qwen3_coder",
        "<function=get_weather><parameter=days>x</parameter></function>",
        [("get_weather", {"days": "x"})],
        "",
    ),
    ("qwen3_coder", "<function=f><parameter=x>True</parameter></function>", [("f", {"x": True})], ""),
    ("qwen3_coder", "<function=f><parameter=x>None</parameter></function>", [("f", {"x": None})], ""),
    ("qwen3_coder", "<function=f><parameter=x>{'a': None}</parameter></function>", [("f", {"x": {"a": None}})], ""),
    (
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Rome")]<|tool_call_end|>Soon.',
        [("get_weather", {"city": "Rome"})],
        "Soon.",
    ),
    (
        "lfm2",
        "<|tool_call_start|>[f(), f(a=[1, 'x)'], b={'c': True})]<|tool_call_end|>",
        [("f", {}), ("f", {"a": [1, "x)"], "b": {"c": True}})],
        "",
    ),
    ("lfm2", "<|tool_call_start|>[f(a=-1, b=null, c=(1,))]", [("f", {"a": -1, "b": None, "c": [1]})], ""),
    ("lfm2", f"<|tool_call_start|>[{F}]<|tool_call_end|>", [("f", {"a": 1})], ""),
    (
        "lfm2",
        "<|tool_call_start|>[write.file-2(text='it\\'s')]<|tool_call_end|>",
        [("write.file-2", {"text": "it's"})],
        "",
    ),
]


@pytest.mark.parametrize(("form", "text", "calls", "content"), GOOD)
def test_calls(form: str, text: str, calls: list[CallSpec], content: str) -> None:
    answer = parsed(form, text)
    assert (found_calls(answer), answer.content, answer.reasoning) == (calls, content, "")


BROKEN = [
    ("hermes", "<tool_call>"),
    ("hermes", "Write <tool_call> and </tool_call> around it."),
    ("hermes", '<tool_call>{"name": "nobody", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>'),  # a brace short
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>'),  # a brace too many
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}} so</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\d"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\u00g0"}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "1" * 2000 + "}}</tool_call>"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 3000),
    ("hermes", '<tool_call>{"name": "f", "name": "f"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "mood": "good"}</tool_call>'),
    ("hermes", "<tool_call>{}</tool_call>"),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("granite", "<|tool_call|>f(x)"),
    ("qwen3_coder", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</function>\n</tool_call>"),
    ("qwen3_coder", "<function=f><parameter=x>1</parameter><parameter=x>2</parameter></function>"),
    ("qwen3_coder", "<function=f>text</function>"),
    ("qwen3_coder", "<function=" + "f" * 5000),
    ("qwen3_coder", f"<tool_call>{F}</tool_call>"),
    ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a=__import__('os').system('true'))]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a='x]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a=1e999)]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a={1: 2})]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[f(a=" + "[" * 3000 + ")]"),
    ("lfm2", "<|tool_call_start|>[f(a=" + "-" * 3000 + "1)]"),
    ("lfm2", "<|tool_call_start|>f()<|tool_call_end|>"),
]


@pytest.mark.parametrize(("form", "text"), BROKEN)
def test_a_malformed_call_is_text(form: str, text: str) -> None:
    answer = parsed(form, text)
    assert (answer.calls, answer.content) == ([], text)


def test_a_broken_call_does_not_hide_the_next() -> None:
    answer = parsed("hermes", f'<tool_call>{{"name": "f", oops</tool_call>\n<tool_call>{F}</tool_call>')
    assert found_calls(answer) == [("f", {"a": 1})]
    assert answer.content == '<tool_call>{"name": "f", oops</tool_call>'


def test_a_call_quoted_inside_a_broken_one_is_not_made() -> None:
    """A file that a model writes may well quote a call."""
    quoted = json.dumps({"name": "f", "arguments": {"rm": True}})
    for form, text in (
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"bad": \\, "text": <tool_call>{quoted}</tool_call>'),
        ("qwen3_coder", "<tool_call><function=f>oops<tool_call><function=f></function></tool_call>"),
        ("qwen3_coder", "<function=f>oops<function=f></function>"),
        ("granite", f"<|tool_call|>[oops <tool_call>{quoted}</tool_call>"),
    ):
        answer = parsed(form, text)
        assert (answer.calls, answer.content) == ([], text)


def test_a_call_streams_and_its_last_brace_waits_for_a_good_end() -> None:
    made = parser("hermes")
    assert made.push('Hm <tool_call>\n{"name": "f", ') == [Content("Hm")]
    assert made.push('"arguments": {"a": "one') == [CallStart(0, "f"), CallArguments(0, '{"a": "on')]
    assert made.push(' two"}') == [CallArguments(0, 'e two"')]
    assert made.push("}\n</tool_call") == []
    assert made.push(">") == [CallArguments(0, "}"), CallEnd(0)]
    assert made.finish() == []


def test_a_string_streams_out_of_tags() -> None:
    made = parser("qwen3_coder")
    assert made.push("<tool_call>\n<function=get_weather>\n<parameter=city>\nSa")[0] == CallStart(0, "get_weather")
    assert made.push('n "José"\n') == [CallArguments(0, 'an \\"José\\')]
    assert made.push("</param") == []
    assert made.push("eter>\n</function>\n</tool_call>")[-1] == CallEnd(0)


def test_a_call_that_breaks_while_it_streams_is_void_and_comes_as_text() -> None:
    text = ' <tool_call>{"name": "f", "arguments": {"a": 1} and so on'
    events = events_of("hermes", [text])
    assert events[0] == CallStart(0, "f")
    assert events[-2:] == [CallBroken(0), Content(text)]


def test_one_call_only_leaves_the_rest_as_text() -> None:
    second = f"<tool_call>{F}</tool_call>"
    answer = parsed("hermes", f"{second}{second}", max_calls=1)
    assert (len(answer.calls), answer.content) == (1, second)
    assert len(parsed("granite", f"<|tool_call|>[{F}, {F}]", max_calls=1).calls) == 1


THINKING: list[tuple[bool, str, str, str]] = [
    # (the header opened the section, answer, reasoning, content)
    (False, "<think>\na\n</think>\n\nb", "a", "b"),
    (True, "a\n</think>\n\nb", "a", "b"),
    (True, "\n\na b \n </think>b\n", "a b", "b\n"),
    (True, "a, cut off", "a, cut off", ""),
    (True, "</think>b", "", "b"),
    (False, "\n\n<think></think>b", "", "b"),
    (False, "b", "", "b"),
    (False, "\n b ", "", "\n b "),
    (False, "b <think>c</think>", "", "b <think>c</think>"),
    (False, "<think>a</think>b<think>c</think>d", "a", "b<think>c</think>d"),
    (False, "b</think>c", "", "b</think>c"),
    (True, "a < b </thin k></think>c", "a < b </thin k>", "c"),
    (True, f"a <tool_call>{F}</tool_call></think>c", f"a <tool_call>{F}</tool_call>", "c"),
]


@pytest.mark.parametrize(("opened", "text", "reasoning", "content"), THINKING)
def test_think_sections(opened: bool, text: str, reasoning: str, content: str) -> None:
    answer = parsed("hermes", text, in_reasoning=opened)
    assert (answer.reasoning, answer.content, answer.calls) == (reasoning, content, [])


def test_reasoning_streams() -> None:
    made = parser(None, in_reasoning=True)
    assert made.push("one ") == [Reasoning("one")]
    assert made.push("two\n</th") == [Reasoning(" two")]
    assert made.push("ink>\n\n") == []
    assert made.push("three") == [Content("three")]


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "lfm2", "granite"])
def test_long_broken_answers_are_text(form: str) -> None:
    heads: dict[str, Any] = {
        "hermes": '<tool_call>{"name": "f", "arguments": {"a": "',
        "qwen3_coder": "<function=write.file-2><parameter=text>",
        "lfm2": "<|tool_call_start|>[f(a='",
        "granite": "<|tool_call|>" * 1000,
    }
    text = heads[form] + "x <" * 10_000
    assert parsed(form, iter(text)).content == text
