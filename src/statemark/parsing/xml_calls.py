"""Calls written as tags: <function=NAME><parameter=KEY>VALUE</parameter></function> (Qwen3-Coder, Qwen3.5 and later).

Values are bare text, one line break at each end not counted; their types come from the tool's schema.
"""

from __future__ import annotations

import json

from statemark.parsing.calls import CallWriter
from statemark.parsing.json_text import Write
from statemark.parsing.literals import json_of
from statemark.parsing.schema import argument_types
from statemark.parsing.source import MalformedError, Source, Steps, begun

FUNCTION, FUNCTION_END = "<function=", "</function>"
_PARAMETER, _END = "<parameter=", "</parameter>"
_MAX_KEY = 256
_SCALARS = {"true": "true", "false": "false", "none": "null", "null": "null"}


def xml_calls(source: Source, calls: CallWriter) -> Steps[None]:
    """One function or several. The last is confirmed by the caller, who knows what may follow."""
    yield from source.expect(FUNCTION)
    while True:
        yield from _call(source, calls)
        yield from source.space()
        if not (yield from source.accept(FUNCTION)):
            return
        calls.confirm()


def _call(source: Source, calls: CallWriter) -> Steps[None]:
    name = (yield from source.until(">", limit=_MAX_KEY)).strip()
    calls.start(name)
    keys: set[str] = set()
    calls.write("{")
    while True:
        yield from source.space()
        if (yield from source.expect(_PARAMETER, FUNCTION_END)) == FUNCTION_END:
            calls.write("}")
            return
        key = (yield from source.until(">", limit=_MAX_KEY)).strip()
        if key in keys:
            raise MalformedError(f"two parameters {key!r}")
        calls.write((", " if keys else "") + json.dumps(key, ensure_ascii=False) + ": ")
        keys.add(key)
        types = argument_types(calls.tools[name], key)
        if types == {"string"}:
            calls.write('"')
            yield from _text(source, lambda text: calls.write(json.dumps(text, ensure_ascii=False)[1:-1]))
            calls.write('"')
        else:
            found: list[str] = []
            yield from _text(source, found.append)
            calls.write(typed("".join(found), types))


def _text(source: Source, write: Write) -> Steps[None]:
    """A value, passed on as it comes, up to its end tag."""
    if not (yield from source.accept("\r\n")):
        yield from source.accept("\n")
    while True:
        end = source.data.find(_END, source.at)
        if end >= 0:
            if (yield from _really_ends(source, end - source.at + len(_END))):
                text = source.data[source.at : end]
                write(text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text)
                source.at = end + len(_END)
                return
            end += len(_END)
        else:
            end = len(source.data) - begun(source.data[source.at :], [_END])
        # A line break before the end tag doesn't count, so one that may be before it waits.
        while end > source.at and source.data[end - 1] in "\r\n":
            end -= 1
        write(source.data[source.at : end])
        source.at = end
        if source.data.find(_END, source.at) < 0:
            if source.closed:
                raise MalformedError(f"no {_END}")
            yield


def _really_ends(source: Source, offset: int) -> Steps[bool]:
    """Whether what ends `offset` characters from here is an end tag: another tag follows, not more of a text."""
    while True:
        there = source.data[source.at + offset : source.at + offset + 1]
        if there and there in " \n\r\t":
            offset += 1
        elif there or source.closed:
            return (yield from source.starts(_PARAMETER, offset)) or (yield from source.starts(FUNCTION_END, offset))
        else:
            yield


def typed(text: str, types: frozenset[str]) -> str:
    """JSON of a bare value: of an allowed type if it reads as one, a string otherwise."""
    bare = text.strip()
    others = types - {"string"}
    scalar = _SCALARS.get(bare.lower())
    if scalar is not None and (not types or (("null" if scalar == "null" else "boolean") in others)):
        return scalar
    try:
        value = json_of(bare) if bare else ""
    except MalformedError:
        value = ""
    kind = _kind(value)
    if kind and (not types or kind in others or (kind == "integer" and "number" in others)):
        return value
    return json.dumps(text, ensure_ascii=False)


def _kind(value: str) -> str:
    """The JSON type of JSON text that is no string, boolean or null; "" for the rest."""
    if value.startswith("{"):
        return "object"
    if value.startswith("["):
        return "array"
    if value[:1] in ("-", *"0123456789") and value:
        return "integer" if value.lstrip("-").isdigit() else "number"
    return ""
