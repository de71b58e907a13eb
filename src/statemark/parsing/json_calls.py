"""Calls written as JSON: {"name": ..., "arguments": {...}}, alone or in a list (Hermes, Qwen, Granite)."""

from __future__ import annotations

import json

from statemark.parsing import json_text
from statemark.parsing.calls import CallWriter
from statemark.parsing.source import MalformedError, Source, Steps

_IGNORED = ("id", "type")  # some models copy them from OpenAI's form


def json_calls(source: Source, calls: CallWriter) -> Steps[None]:
    """An object or a list of objects. The caller confirms the last call: it knows what may follow."""
    if (yield from source.accept("[")):
        yield from json_items(source, calls)
    else:
        yield from _call(source, calls)


def json_items(source: Source, calls: CallWriter) -> Steps[None]:
    """What follows the bracket of a list. A list that the answer ends in counts as far as it is whole."""
    while True:
        yield from source.space()
        yield from _call(source, calls)
        yield from source.space()
        if not (yield from source.peek()):
            return
        if (yield from source.expect(",", "]")) == "]":
            return
        calls.confirm()


def _call(source: Source, calls: CallWriter) -> Steps[None]:
    """One object. It streams if the name comes before the arguments."""
    name: str | None = None
    arguments: str | None = None  # "" once they are streamed
    yield from source.expect("{")
    while True:
        yield from source.space()
        key = yield from _decoded(source)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        if key == "name" and name is None:
            name = yield from _decoded(source)
        elif key in ("arguments", "parameters") and arguments is None:
            if name is not None and (yield from source.peek()) == "{":
                calls.start(name)
                arguments = ""
                yield from json_text.members(source, calls.write)
            else:
                arguments = yield from _arguments(source)
        elif key in _IGNORED:
            yield from json_text.value(source, lambda text: None)
        else:
            raise MalformedError(f"a call has no {key!r}, or not twice")
        yield from source.space()
        if (yield from source.expect(",", "}")) == "}":
            break
    if name is None:
        raise MalformedError("a call without a name")
    if arguments != "":
        calls.whole(name, arguments or "{}")


def _decoded(source: Source) -> Steps[str]:
    found: list[str] = []
    yield from json_text.string(source, found.append)
    return str(json.loads("".join(found)))


def _arguments(source: Source) -> Steps[str]:
    """An object, the same as a string inside JSON, or null for none."""
    found: list[str] = []
    yield from json_text.value(source, found.append)
    text = "".join(found)
    if text.startswith('"'):
        return json_text.canonical_object(json.loads(text))
    if text == "null":
        return "{}"
    if not text.startswith("{"):
        raise MalformedError("arguments must be an object")
    return text
