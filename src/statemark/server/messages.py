"""Chat messages as clients send them -> plain dicts as chat templates read them. Knows no template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from statemark.server.errors import bad_request
from statemark.server.protocol import Message, ToolCall

_ROLES = ("system", "developer", "user", "assistant", "tool")


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Checked and flattened: text parts joined, tool arguments parsed, absent fields left out."""
    if not messages:
        raise bad_request("messages must hold at least one message", param="messages")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Message, where: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise bad_request(f"{where}.role: {message.role!r} is not one of {', '.join(_ROLES)}", param=f"{where}.role")
    # "developer" is OpenAI's newer name for the system role; templates know only the older.
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    content = _text(message.content, f"{where}.content")
    if content is None and message.role != "assistant":  # an assistant message may be tool calls alone
        raise bad_request(f"{where}.content is missing", param=f"{where}.content")
    plain["content"] = content or ""
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    for name in ("name", "tool_call_id"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _text(content: str | list[dict[str, Any]] | None, where: str) -> str | None:
    """A content as one string. Parts follow each other without a separator, as templates that take parts have it."""
    if content is None or isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        kind, text = part.get("type"), part.get("text")
        if kind != "text":
            raise bad_request(
                f"{where}[{i}]: parts of type {kind!r} are not supported; 'text' is", param=f"{where}[{i}].type"
            )
        if not isinstance(text, str):
            raise bad_request(f"{where}[{i}].text must be a string", param=f"{where}[{i}].text")
        texts.append(text)
    return "".join(texts)


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    """Templates iterate over the arguments, clients send them as a JSON string."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        where = f"{where}.function.arguments"
        raise bad_request(f"{where} must be a JSON object in a string", param=where)
    plain: dict[str, Any] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    if call.id is not None:
        plain["id"] = call.id
    return plain
