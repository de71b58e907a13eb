"""What spoils prefixes for no good: values in the system prompt that are new each time. Knows no API.

One coding agent begins its system prompt with a line
`x-anthropic-billing-header: cc_version=2.1.197.<3 hex digits>; cc_entrypoint=...; cch=<5 hex digits>;`.
The three digits follow from the first message, so that no two conversations share more than their first tokens. The
five, which it leaves out where it isn't told to attest, are those of the request: then no two prompts do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_LINE = re.compile(r"^x-anthropic-billing-header:[^\n]{0,500}$", re.MULTILINE)
_VALUES = (
    (re.compile(r"(\bcc_version=\d+\.\d+\.\d+\.)[0-9a-f]{3}\b"), r"\g<1>000"),
    (re.compile(r"(\bcch=)[0-9a-f]{5}\b"), r"\g<1>00000"),
)


def normalized(messages: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], bool]:
    """The messages with every such value in a system message set to zeros, and whether there was any."""
    found = [
        {**message, "content": _content(message.get("content"))} if message.get("role") == "system" else message
        for message in messages
    ]
    return (found, True) if found != list(messages) else (messages, False)


def _content(content: Any) -> Any:
    """A text, or a list of parts with texts."""
    if isinstance(content, str):
        return _LINE.sub(_zeros, content)
    if not isinstance(content, list):
        return content
    return [
        {**part, "text": _LINE.sub(_zeros, part["text"])}
        if isinstance(part, dict) and isinstance(part.get("text"), str)
        else part
        for part in content
    ]


def _zeros(line: re.Match[str]) -> str:
    text = line[0]
    for value, fixed in _VALUES:
        text = value.sub(fixed, text)
    return text
