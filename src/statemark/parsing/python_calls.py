"""Calls written as a Python list: [name(key=value, ...), ...] (LFM2), or as JSON where the model was told so."""

from __future__ import annotations

import json
import re

from statemark.parsing.calls import CallWriter
from statemark.parsing.json_calls import json_calls, json_items
from statemark.parsing.json_text import MAX_DEPTH
from statemark.parsing.literals import json_of
from statemark.parsing.source import MalformedError, Source, Steps

_MAX_NAME = 256
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CLOSES = {"(": ")", "[": "]", "{": "}"}


def python_calls(source: Source, calls: CallWriter) -> Steps[None]:
    """The last call is confirmed by the caller, who knows what may follow."""
    if not (yield from source.accept("[")):
        yield from json_calls(source, calls)
        return
    yield from source.space()
    if (yield from source.peek()) == "{":
        yield from json_items(source, calls)
        return
    while True:
        yield from source.space()
        yield from _call(source, calls)
        yield from source.space()
        if not (yield from source.peek()) or (yield from source.expect(",", "]")) == "]":
            return
        calls.confirm()


def _call(source: Source, calls: CallWriter) -> Steps[None]:
    calls.start((yield from source.until("(", limit=_MAX_NAME)).strip())
    calls.write("{")
    keys: set[str] = set()
    yield from source.space()
    while not (yield from source.accept(")")):
        key = (yield from source.until("=", limit=_MAX_NAME)).strip()
        if key in keys or not _KEY.fullmatch(key):
            raise MalformedError(f"not a new argument: {key!r}")
        value = json_of((yield from _literal(source)))
        calls.write((", " if keys else "") + json.dumps(key) + ": " + value)
        keys.add(key)
        yield from source.accept(",")
        yield from source.space()
    calls.write("}")


def _literal(source: Source) -> Steps[str]:
    """Text up to the comma or parenthesis that ends a value, which stays."""
    begin = source.at
    closes: list[str] = []
    while True:
        character = yield from source.next()
        if character in "'\"":
            yield from _string(source, character)
        elif character in _CLOSES:
            closes.append(_CLOSES[character])
            if len(closes) > MAX_DEPTH:
                raise MalformedError(f"nested deeper than {MAX_DEPTH}")
        elif closes and character == closes[-1]:
            closes.pop()
        elif character in ")]}" or (character == "," and not closes):
            source.at -= 1
            return source.data[begin : source.at]


def _string(source: Source, quote: str) -> Steps[None]:
    while (character := (yield from source.next())) != quote:
        if character == "\\":
            yield from source.next()
