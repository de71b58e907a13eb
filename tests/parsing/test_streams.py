"""Properties: a stream parses to what its whole parses to, whatever the pieces; nothing is lost; nothing crashes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statemark.parsing import TOOL_FORMATS, CallArguments, CallBroken, CallEnd, CallStart, Content, Event
from tests.parsing.answers import (
    ARGUMENTS,
    JSON_ARGUMENTS,
    WRITTEN,
    CallSpec,
    call_lists,
    cut,
    events_of,
    found_calls,
    parsed,
)

FORMATS = sorted(TOOL_FORMATS)
# Bits of every format, right and wrong, so that soups of them reach each branch of each parser.
BITS = [
    *[
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|tool_call_start|>",
        "<|tool_call_end|>",
    ],
    *["<function=", "<function=f>", "</function>", "<parameter=city>", "<parameter=x>", "</parameter>"],
    *['{"name": "f", "arguments": ', '{"name": "f"}', '{"arguments": {"a": 1}, "name": "f"}', '{"name":"nobody"}'],
    *[
        '"a": ',
        '"a": 1',
        "[",
        "]",
        "{",
        "}",
        ",",
        '"',
        "\\",
        "\\u12",
        "\\n",
        "-1.5e3",
        "01",
        "tru",
        "true",
        "null",
        ": ",
    ],
    *[
        "[f(",
        "f(",
        ")",
        "a=1",
        "a='x",
        "'",
        "b=[1, (2)]",
        ", ",
        "get_weather(city='P', days=",
        "<function=get_weather>",
    ],
    *[" ", "\n", "\r\n", "\n\n", "text", "<", "<t", "<|", "</", ">", "é", "\ufffd", "\x00", "\x1f"],
]
soups = st.lists(st.sampled_from(BITS), max_size=25).map("".join)
places = st.lists(st.integers(0, 1 << 16), max_size=12)


def answers(form: str) -> st.SearchStrategy[str]:
    """Well-formed answers with a few bits put in and taken out, so that calls break late as well as early."""

    def damaged(written: str, at: int, gone: int, bit: str) -> str:
        at %= len(written) + 1
        return written[:at] + bit + written[at + gone :]

    calls = call_lists(ARGUMENTS).map(WRITTEN[form])
    return st.builds(damaged, calls, st.integers(0, 1 << 16), st.integers(0, 2), st.sampled_from(["", *BITS]))


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data(), in_reasoning=st.booleans(), places=places)
def test_any_split_gives_the_events_of_the_whole(
    form: str, data: st.DataObject, in_reasoning: bool, places: list[int]
) -> None:
    text = data.draw(soups | answers(form) | st.tuples(soups, answers(form), soups).map("".join))
    whole = events_of(form, [text], in_reasoning=in_reasoning)
    assert events_of(form, cut(text, places), in_reasoning=in_reasoning) == whole
    assert events_of(form, text, in_reasoning=in_reasoning) == whole  # one character at a time


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data())
def test_calls_are_whole_or_void(form: str, data: st.DataObject) -> None:
    """Each started call ends or is void; an ended one's arguments are a JSON object, a void one's are none."""
    text = data.draw(soups | answers(form) | st.tuples(soups, answers(form), soups).map("".join))
    open_calls: dict[int, str] = {}
    for event in events_of(form, text):
        match event:
            case CallStart(index):
                assert not open_calls
                open_calls[index] = ""
            case CallArguments(index, piece):
                open_calls[index] += piece
            case CallEnd(index):
                assert isinstance(json.loads(open_calls.pop(index)), dict)
            case CallBroken(index):
                with pytest.raises(json.JSONDecodeError):
                    json.loads(open_calls.pop(index))
    assert not open_calls


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("form", FORMATS)
@given(data=st.data())
def test_what_is_not_recognised_is_content(form: str, data: st.DataObject) -> None:
    """Without a call that ended, and without think tags, every character is content; the same where calls are off."""
    text = data.draw(soups | answers(form))
    answer = parsed(form, text, thinks=False)
    if not answer.calls:
        assert answer.content == text
    assert parsed(form, text, thinks=False, tools=None).content == text
    assert parsed(None, text, thinks=False).content == text


words = st.text("abc <>{}", max_size=8).map(lambda text: f"w{text}w")


@pytest.mark.parametrize("form", FORMATS)
@given(
    thought=st.text("xyz \n<tool_call>", max_size=12).map(lambda text: f"t{text}t"),
    parts=st.lists(words | call_lists(ARGUMENTS), max_size=4),
    places=places,
)
def test_reasoning_content_and_calls_come_back(
    form: str, thought: str, parts: list[str | list[CallSpec]], places: list[int]
) -> None:
    """Nothing is lost and nothing added, but white space beside markers."""
    text = f"<think>\n{thought}\n</think>\n\n" + "".join(p if isinstance(p, str) else WRITTEN[form](p) for p in parts)
    answer = parsed(form, cut(text, places))
    assert answer.reasoning == thought
    assert answer.content == "".join(part for part in parts if isinstance(part, str))
    assert found_calls(answer) == [call for part in parts if not isinstance(part, str) for call in part]


@pytest.mark.parametrize("form", ["hermes", "granite"])
@given(calls=call_lists(JSON_ARGUMENTS), places=places)
@example(calls=[("f", {"a": "\"}</tool_call><tool_call>{'\\"})], places=[3, 9])
def test_any_json_comes_back(form: str, calls: list[CallSpec], places: list[int]) -> None:
    answer = parsed(form, cut(WRITTEN[form](calls), places))
    assert found_calls(answer) == calls
    assert answer.content == ""


@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=20), places=places)
@example(text="</parameter>", places=[])
@example(text="\n\n</parameter>\n<parameter>\n", places=[])
def test_any_string_comes_back_from_tags(text: str, places: list[int]) -> None:
    calls = [("write.file-2", {"text": text})]
    assert found_calls(parsed("qwen3_coder", cut(WRITTEN["qwen3_coder"](calls), places))) == [
        ("write.file-2", {"text": text.removesuffix("\r")})
    ]


def test_the_split_property_can_fail() -> None:
    """A parser that looks at each delta alone, as a planted fault, doesn't pass what the property asks."""

    def per_delta(pieces: list[str]) -> list[Event]:
        found: list[Event] = []
        for piece in pieces:
            found += events_of("hermes", [piece])
        return found

    text = WRITTEN["hermes"]([("f", {})])
    assert per_delta([text]) == events_of("hermes", [text])
    assert per_delta(cut(text, [5])) != events_of("hermes", [text])
    assert all(isinstance(event, Content) for event in per_delta(cut(text, [5])))
