"""Values as models write them in Python's spelling or in JSON's, turned into JSON text. Runs nothing."""

from __future__ import annotations

import ast
import json
import warnings
from typing import Any

from statemark.parsing.json_text import MAX_DEPTH
from statemark.parsing.source import MalformedError

_NAMES: dict[str, Any] = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_MAX_CHARACTERS = 1 << 20


def json_of(text: str) -> str:
    """JSON text of a literal in either spelling; MalformedError for anything else, names and calls included."""
    if len(text) > _MAX_CHARACTERS:
        raise MalformedError(f"a value of more than {_MAX_CHARACTERS} characters")
    text = text.strip()
    try:
        return json.dumps(json.loads(text, parse_constant=_refuse), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        pass  # perhaps Python's spelling
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own doubts about escapes
            tree = ast.parse(text, mode="eval")
        return json.dumps(_value(tree.body, 0), ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise MalformedError(f"not a literal: {error}") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _value(node: ast.expr, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise MalformedError(f"nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=str() | bool() | int() | float() | None as constant):
            return constant
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, depth + 1) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(value, depth + 1) for key, value in zip(keys, values, strict=True)}
    raise MalformedError("not a literal")


def _key(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise MalformedError("keys must be strings")
