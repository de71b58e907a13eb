"""What spoils prefixes for no good: a value in the system prompt that is new with every request. Knows no API.

One coding agent begins its system prompt with a line `x-anthropic-billing-header: cc_version=...; cc_entrypoint=...;
cch=<5 hex digits>;`. The digits are those of the request, so that no two prompts share more than their first tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NONCE = re.compile(r"(?m)^(?P<head>.*\bcc_version=[^;\n]*;\s*cc_entrypoint=[^;\n]*;.*\bcch=)(?P<nonce>[0-9a-f]{5})\b")
_FIXED = "00000"


def normalized(messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], int]:
    """The messages with every such value in a system message set to zeros, and how many there were."""
    count = 0
    found: list[Mapping[str, Any]] = []
    for message in messages:
        if message.get("role") == "system":
            content, changes = _content(message.get("content"))
            if changes:
                message = {**message, "content": content}
                count += changes
        found.append(message)
    return found, count


def _content(content: Any) -> tuple[Any, int]:
    """A text, or a list of parts with texts."""
    if isinstance(content, str):
        return _NONCE.subn(rf"\g<head>{_FIXED}", content)
    if not isinstance(content, list):
        return content, 0
    parts, count = [], 0
    for part in content:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            text, changes = _content(part["text"])
            part = {**part, "text": text}
            count += changes
        parts.append(part)
    return parts, count
