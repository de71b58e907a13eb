"""Chat messages as clients send them -> dicts as the chat template's owner takes them. Knows no template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from statemark.server.errors import bad_request
from statemark.server.protocol import Message

_ROLES = ("system", "developer", "user", "assistant", "tool")


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Known roles only, absent fields left out."""
    return [_template_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _template_message(message: Message, where: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise bad_request(f"{where}.role: {message.role!r} is not one of {', '.join(_ROLES)}", param=f"{where}.role")
    if message.content is None and message.role != "assistant":  # an assistant message may be tool calls alone
        raise bad_request(f"{where}.content is missing", param=f"{where}.content")
    plain = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    plain.pop("refusal", None)
    if message.role == "developer":  # OpenAI's newer name for the system role; templates know only the older
        plain["role"] = "system"
    return plain
