"""Which types a tool's JSON schema allows for an argument: formats that write bare values need it to read them.

Only what decides between a string and another value is looked at; whether a value fits its schema is the client's
business, as it is with every other server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_MAX_DEPTH = 8


def argument_types(schema: Mapping[str, Any], name: str) -> frozenset[str]:
    """JSON types that the argument `name` may have; empty if the schema doesn't say."""
    properties = schema.get("properties")
    argument = properties.get(name) if isinstance(properties, Mapping) else None
    return _types(argument, schema, 0)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    if isinstance(schema.get("$ref"), str):
        return _types(_referred(root, schema["$ref"]), root, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(item for item in kind if isinstance(item, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(_JSON_TYPES.get(type(value), "object") for value in values)
    for word in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(word)
        if isinstance(parts, list):
            found = [_types(part, root, depth + 1) for part in parts]
            # A part that says nothing allows everything, unless all parts hold at once.
            return frozenset().union(*found) if word == "allOf" or all(found) else frozenset()
    return frozenset()


def _referred(root: Mapping[str, Any], pointer: str) -> Any:
    """The part of the schema that a local reference ("#/$defs/x") names, or None."""
    if not pointer.startswith("#/"):
        return None
    found: Any = root
    for part in pointer[2:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part.replace("~1", "/").replace("~0", "~"))
    return found
