"""What the tests of parsing share: answers written in each format, and parsing in given pieces."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from statemark.parsing import (
    TOOL_FORMATS,
    AnswerParser,
    CallArguments,
    ChatFormat,
    Content,
    Event,
    ParsedAnswer,
    Reasoning,
)

ANY: dict[str, Any] = {}
TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "tags": {"type": "array"}},
    },
    "f": ANY,
    "write.file-2": {"properties": {"text": {"type": "string"}}},
}
CallSpec = tuple[str, dict[str, Any]]


def parser(form: str | None, **options: Any) -> AnswerParser:
    thinks = options.pop("thinks", True)
    tools = options.pop("tools", TOOLS)
    return AnswerParser(ChatFormat(TOOL_FORMATS.get(form or ""), thinks), tools=tools, **options)


def events_of(form: str | None, pieces: Iterable[str], **options: Any) -> list[Event]:
    """All events, neighbours of a kind joined, so that only their sums count."""
    made = parser(form, **options)
    found: list[Event] = []
    for piece in pieces:
        found += made.push(piece)
    found += made.finish()
    return joined(found)


def joined(events: Iterable[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and last.index == event.index:
            result[-1] = CallArguments(event.index, last.text + event.text)
        else:
            result.append(event)
    return result


def parsed(form: str | None, text: str | Iterable[str], **options: Any) -> ParsedAnswer:
    answer = ParsedAnswer()
    answer.add(events_of(form, [text] if isinstance(text, str) else text, **options))
    return answer


def found_calls(answer: ParsedAnswer) -> list[CallSpec]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def cut(text: str, places: Sequence[int]) -> list[str]:
    """`text` in pieces; places beyond it are brought inside."""
    ends = sorted(place % (len(text) + 1) for place in places)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


# --- calls as models write them ---------------------------------------------------------------------------------


def as_json(calls: Sequence[CallSpec]) -> str:
    bodies = (json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def as_xml(calls: Sequence[CallSpec]) -> str:
    def bare(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def one(name: str, arguments: dict[str, Any]) -> str:
        values = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"

    return "\n".join(one(*call) for call in calls)


def as_python(calls: Sequence[CallSpec]) -> str:
    def one(name: str, arguments: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    return f"<|tool_call_start|>[{', '.join(one(*call) for call in calls)}]<|tool_call_end|>"


def as_list(calls: Sequence[CallSpec]) -> str:
    return "<|tool_call|>" + json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)


WRITTEN = {"hermes": as_json, "qwen3_coder": as_xml, "lfm2": as_python, "granite": as_list}

_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
_SCALARS = st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _SCALARS | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_KEYS = st.from_regex(r"[a-z][a-z_]{0,6}", fullmatch=True)
# Values that every format can write without saying their type: strings that read as nothing else, and structures.
_WORDS = st.from_regex(r"[xyz][^\x00-\x1f\x7f-\xff\ud800-\udfff]{0,10}[xyz]", fullmatch=True)
ARGUMENTS = st.dictionaries(_KEYS, _WORDS | st.lists(_SCALARS | _WORDS, max_size=3) | st.integers(0, 99), max_size=3)
JSON_ARGUMENTS = st.dictionaries(_TEXT, _VALUES, max_size=3)


def call_lists(arguments: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[CallSpec]]:
    return st.lists(st.tuples(st.sampled_from(["f", "write.file-2"]), arguments), min_size=1, max_size=3)
