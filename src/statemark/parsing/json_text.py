"""Strict JSON read character by character and passed on as it comes. Knows no calls.

What is written is valid JSON as long as nothing is raised. One repair: control characters inside strings, which
models write and JSON forbids, are escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from statemark.parsing.source import MalformedError, Source, Steps

Write = Callable[[str], None]

MAX_DEPTH = 64
_MAX_NUMBER = 1000  # characters; more digits than parsers of clients take
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_NUMBER_CHARACTERS = frozenset("0123456789+-.eE")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')


def value(source: Source, write: Write, depth: int = 0) -> Steps[None]:
    """One JSON value of any kind."""
    first = yield from source.peek()
    if first == "{":
        yield from members(source, write, depth)
    elif first == "[":
        yield from _items(source, write, depth)
    elif first == '"':
        yield from string(source, write)
    elif first in _NUMBER_CHARACTERS:
        yield from _number(source, write)
    else:
        write((yield from source.expect("true", "false", "null")))


def members(source: Source, write: Write, depth: int = 0) -> Steps[None]:
    """A JSON object."""
    _check(depth)
    write((yield from source.expect("{")))
    yield from source.space()
    if (yield from source.accept("}")):
        write("}")
        return
    while True:
        yield from source.space()
        yield from string(source, write)
        yield from source.space()
        yield from source.expect(":")
        yield from source.space()
        write(": ")
        yield from value(source, write, depth + 1)
        yield from source.space()
        sign = yield from source.expect(",", "}")
        write(", " if sign == "," else sign)
        if sign == "}":
            return


def _items(source: Source, write: Write, depth: int) -> Steps[None]:
    _check(depth)
    write((yield from source.expect("[")))
    yield from source.space()
    if (yield from source.accept("]")):
        write("]")
        return
    while True:
        yield from source.space()
        yield from value(source, write, depth + 1)
        yield from source.space()
        sign = yield from source.expect(",", "]")
        write(", " if sign == "," else sign)
        if sign == "]":
            return


def _check(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise MalformedError(f"nested deeper than {MAX_DEPTH}")


def string(source: Source, write: Write) -> Steps[None]:
    """A JSON string with its quotes."""
    write((yield from source.expect('"')))
    while True:
        plain = _PLAIN.match(source.data, source.at)
        if plain:
            source.at = plain.end()
            write(plain[0])
        character = yield from source.next()
        if character == '"':
            write('"')
            return
        if character == "\\":
            write("\\" + (yield from _escape(source)))
        elif character < " ":
            write(json.dumps(character)[1:-1])
        else:
            write(character)


def _escape(source: Source) -> Steps[str]:
    kind = yield from source.next()
    if kind == "u":
        digits = ""
        for _ in range(4):
            digits += yield from source.next()
        if not re.fullmatch("[0-9a-fA-F]{4}", digits):
            raise MalformedError("a \\u escape without four hexadecimal digits")
        return kind + digits
    if kind not in '"\\/bfnrt':
        raise MalformedError(f"there is no escape \\{kind}")
    return kind


def _number(source: Source, write: Write) -> Steps[None]:
    text = ""
    while (character := (yield from source.peek())) in _NUMBER_CHARACTERS:
        text += character
        source.at += 1
        if len(text) > _MAX_NUMBER:
            raise MalformedError(f"a number of more than {_MAX_NUMBER} characters")
    if not _NUMBER.fullmatch(text):
        raise MalformedError(f"{text} is not a number")
    write(text)


def canonical_object(text: str) -> str:
    """`text` as one JSON object, or MalformedError."""
    source, found = Source(), list[str]()
    source.push(text)
    source.close()

    def whole() -> Steps[None]:
        yield from source.space()
        yield from members(source, found.append)
        yield from source.space()
        if (yield from source.peek()):
            raise MalformedError("text follows the object")

    for _ in whole():
        raise AssertionError("a closed source asked for more")
    return "".join(found)
