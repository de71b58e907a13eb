"""A grammar (Lark's form, as llguidance reads it) of the calls that a request asks for, in a model's own format.

What it lets through is what the parser of the format reads, with arguments that satisfy the tool's schema. None where
a schema asks for more than the format's grammar can say. Knows no vocabulary: which markers are single tokens is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from statemark.parsing.calls import Tools
from statemark.parsing.formats import ToolFormat
from statemark.parsing.schema import argument_types

# As templates print JSON, and as models therefore write it. Free white space would let a model write nothing else.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PYTHON_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOTES = {"type", "title", "description", "default", "examples", "format"}  # keywords that say no more than a type
_OBJECT = {*_NOTES, "properties", "required", "additionalProperties", "$defs", "definitions", "$schema", "$id"}

Schema = Mapping[str, Any]


class _NotEnforceableError(Exception):
    """A schema or a name that the format can't be held to. Always caught."""


def call_grammar(
    form: ToolFormat, tools: Tools, *, one_call: bool, token_id: Callable[[str], int | None]
) -> str | None:
    """Calls of any of `tools`, one or several. `token_id`: of a marker that is a token of its own, None of others."""
    try:
        return _Grammar(token_id).write(form, tools, one_call)
    except _NotEnforceableError:
        return None


class _Grammar:
    """The rules so far."""

    def __init__(self, token_id: Callable[[str], int | None]) -> None:
        self._token_id = token_id
        self._rules: list[str] = []

    def write(self, form: ToolFormat, tools: Tools, one_call: bool) -> str:
        call, before, between, after = self._layout(form)
        options = " | ".join(self._rule(call(name, schema)) for name, schema in tools.items())
        many = "" if one_call else f" ({between} call)*"
        # A think section that has just ended is followed by line breaks; parsers pass over them.
        return "\n".join([rf"start: /\n{{0,2}}/ {before} call{many} {after}", f"call: {options}", *self._rules])

    def _layout(self, form: ToolFormat) -> tuple[Callable[[str, Schema], str], str, str, str]:
        """How a call is written, what stands before the first, between two and after the last."""
        begin, end = next(iter(form.markers.items()))
        begin, end = self._marker(begin), self._marker(end)
        match form.name:
            case "hermes":
                return self._json_call, f'{begin} "\\n"', f'"\\n" {end} "\\n" {begin} "\\n"', f'"\\n" {end}'
            case "granite":
                return self._json_call, f'{begin} "["', '", "', f'"]" {end}'
            case "qwen3_coder":
                return self._tags, f'{begin} "\\n"', f'"\\n" {end} "\\n" {begin} "\\n"', f'"\\n" {end}'
            case "lfm2":
                return self._python_call, f'{begin} "["', '", "', f'"]" {end}'
        raise _NotEnforceableError

    def _marker(self, text: str) -> str:
        """llguidance tells such a token from the text that it stands for."""
        found = self._token_id(text) if text else None
        return _literal(text) if found is None else f"<[{found}]>"

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _json(self, schema: Schema) -> str:
        return self._rule(f"%json {_literal({**schema, 'x-guidance': _LAYOUT})}")

    # --- one call in each format ----------------------------------------------------------------------------

    def _json_call(self, name: str, schema: Schema) -> str:
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        return f'{_literal(head)} {self._json({**schema, "type": "object"})} "}}"'

    def _tags(self, name: str, schema: Schema) -> str:
        items = []
        for key, value, required in _arguments(schema):
            if not re.fullmatch(r"[^\s<>]{1,200}", key):
                raise _NotEnforceableError
            item = f"{_literal(f'<parameter={key}>' + chr(10))} {self._bare(value, argument_types(schema, key))}"
            items.append(item if required else f"({item})?")
        return " ".join([_literal(f"<function={name}>\n"), *items, '"</function>"'])

    def _bare(self, schema: Schema, types: frozenset[str]) -> str:
        """A value between its tags, with the end tag."""
        end = "\n</parameter>\n"
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return f"({' | '.join(_literal(value) for value in values)}) {_literal(end)}"
        if types and "string" not in types:
            return f"{self._json(schema)} {_literal(end)}"
        if not _any_of_its_types(schema):
            raise _NotEnforceableError
        return self._rule("/(?s:.*)/", f"[suffix={_literal(end)}]")

    def _python_call(self, name: str, schema: Schema) -> str:
        """Arguments in the schema's order. `first` stands for those from one on if none was written yet."""
        first = more = self._rule('""')
        for key, value, required in reversed(_arguments(schema)):
            if not _PYTHON_NAME.fullmatch(key):
                raise _NotEnforceableError
            item = f"{_literal(f'{key}=')} {self._json(value)} {more}"
            first, more = (
                self._rule(item if required else f"{item} | {first}"),
                self._rule(f'", " {item}' if required else f'", " {item} | {more}'),
            )
        return f'{_literal(f"{name}(")} {first} ")"'


def _arguments(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Name, schema and whether it is required, of each argument; each schema can be read on its own."""
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if set(schema) - _OBJECT or not isinstance(properties, Mapping) or not set(required) <= set(properties):
        raise _NotEnforceableError  # what ties arguments together isn't a matter of single ones
    shared = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    found: list[tuple[str, Schema, bool]] = []
    for key, value in properties.items():
        if not isinstance(value, Mapping):
            raise _NotEnforceableError
        found.append((key, {**shared, **value}, key in required))
    return found


def _any_of_its_types(schema: Schema) -> bool:
    """Whether all that a text may be read as satisfies the schema: it names types, and nothing more."""
    parts = schema.get("anyOf", [])
    if set(schema) - _NOTES - {"anyOf", "$defs", "definitions"} or not isinstance(parts, list):
        return False
    return all(isinstance(part, Mapping) and set(part) <= _NOTES and "type" in part for part in parts)


def _literal(value: Any) -> str:
    # A grammar with ::= would be taken for llama.cpp's form.
    return json.dumps(value, ensure_ascii=False).replace("::=", ":\\u003a=")
