"""The tools of a request and what it says about their use, checked, whatever API it came by. Knows no answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statemark.parsing import Tools
from statemark.server.errors import bad_request

_NAME = re.compile(r"[^\s<>\"'(){}\[\]]{1,128}")
"""Names come back out of text, so signs by which formats end a name can't be in one."""

AUTO, NONE, REQUIRED = "auto", "none", "required"


@dataclass(frozen=True)
class ToolUse:
    """`must_call`: None where that is up to the model, "" for a call of any tool, else the name of the one to call."""

    must_call: str | None = None
    one_call: bool = False


def offered(tools: Sequence[Any] | None) -> Tools:
    """Name -> schema of the arguments, of tools as chat templates take them; a 400 for what is no such tool."""
    found: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(tools or ()):
        where = f"tools[{i}]"
        kind = tool.get("type", "function")
        if kind != "function":
            raise bad_request(f"{where}.type: {kind!r} is not supported; 'function' is", param=f"{where}.type")
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise bad_request(f"{where}.function: expected object", param=f"{where}.function")
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise bad_request(
                f"{where}.function.name must be 1 to 128 characters without spaces, quotes and brackets, got {name!r}",
                param=f"{where}.function.name",
            )
        if name in found:
            raise bad_request(f"two tools are called {name!r}", param=f"{where}.function.name")
        if schema is not None and not isinstance(schema, Mapping):
            raise bad_request(f"{where}.function.parameters: expected object", param=f"{where}.function.parameters")
        found[name] = schema or {}
    return found


def tool_use(choice: str | None, name: str | None, tools: Sequence[Any] | None, *, parallel: bool | None) -> ToolUse:
    """`choice` is auto, none or required, or None; `name` that of the tool that must be called."""
    names = offered(tools)
    if name is None and choice in (None, AUTO, NONE):
        return ToolUse(one_call=parallel is False)
    if name is None and choice != REQUIRED:
        raise bad_request(
            f"tool_choice {choice!r} is not supported; auto, none, required and a tool are", param="tool_choice"
        )
    if not names:
        raise bad_request("tool_choice asks for a call, but no tools are given", param="tool_choice")
    if name is not None and name not in names:
        raise bad_request(f"tool_choice names {name!r}, which is not among the tools", param="tool_choice")
    return ToolUse(name or "", one_call=parallel is False or name is not None)
