"""The fields by which requests ask for an answer of a certain form -> one `Structure`. Knows no grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from statemark.engine.params import Structure
from statemark.server.errors import bad_request
from statemark.server.protocol import CommonRequest, JsonSchemaFormat, ResponseFormat, StructuredOutputs


def structure_of(asked: CommonRequest) -> Structure | None:
    """OpenAI's `response_format`, vLLM's `structured_outputs` or its older `guided_*`: at most one of them."""
    found = [
        (name, structure)
        for name, structure in (
            ("response_format", of_response_format(asked.response_format)),
            ("structured_outputs", _of_structured(asked.structured_outputs)),
            ("guided_json", _json(asked.guided_json)),
            ("guided_regex", _text("regex", asked.guided_regex)),
            ("guided_choice", _choice(asked.guided_choice)),
            ("guided_grammar", _text("grammar", asked.guided_grammar)),
        )
        if structure is not None
    ]
    if len(found) > 1:
        names = " and ".join(name for name, _ in found)
        raise bad_request(f"an answer can follow one structure only; given are {names}", param=found[1][0])
    return found[0][1] if found else None


def of_response_format(asked: ResponseFormat | None, where: str = "response_format") -> Structure | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Structure("json_object")
    if asked.type == "json_schema":
        return of_schema(asked.json_schema, f"{where}.json_schema")
    raise bad_request(
        f"{where} {asked.type!r} is not supported; 'text', 'json_object' and 'json_schema' are", param=where
    )


def of_schema(asked: JsonSchemaFormat | None, where: str) -> Structure:
    if asked is None or asked.schema is None:
        raise bad_request(f"missing field: '{where}.schema'", param=f"{where}.schema", code="missing_field")
    return Structure("json", _encoded(asked.schema))


def _of_structured(asked: StructuredOutputs | None) -> Structure | None:
    if asked is None:
        return None
    given = {name: value for name, value in msgspec.structs.asdict(asked).items() if value not in (None, False)}
    if len(given) != 1:
        names = ", ".join(StructuredOutputs.__struct_fields__)
        raise bad_request(f"structured_outputs takes exactly one of {names}", param="structured_outputs")
    match next(iter(given.items())):
        case "json", value:
            return _json(value)
        case "choice", value:
            return _choice(value)
        case "json_object", _:
            return Structure("json_object")
        case kind, value:
            return Structure(kind, value)
    raise AssertionError("a field of StructuredOutputs that is not handled")


def _json(schema: Any) -> Structure | None:
    """A schema, as an object or as its text."""
    if schema is None:
        return None
    if isinstance(schema, str):
        return Structure("json", schema)
    if isinstance(schema, Mapping):
        return Structure("json", _encoded(schema))
    raise bad_request("a JSON schema must be an object or a string", param="guided_json")


def _text(kind: str, source: str | None) -> Structure | None:
    return None if source is None else Structure(kind, source)


def _choice(options: list[str] | None) -> Structure | None:
    if options is None:
        return None
    if not options or not all(options):
        raise bad_request("a choice needs at least one text, none of them empty", param="guided_choice")
    return Structure("choice", json.dumps(options))


def _encoded(schema: Mapping[str, Any]) -> str:
    """Keys stay in their order: it is the order in which they are written."""
    return msgspec.json.encode(schema).decode()
