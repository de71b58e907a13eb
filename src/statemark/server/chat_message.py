"""Parts of an answer as a chat message, whole or in deltas. Reasoning goes by both names that clients know."""

from __future__ import annotations

from typing import Any

from statemark.server.parts import Part, blocks


def whole_message(parts: list[Part]) -> dict[str, Any]:
    """`content` is null where there are calls alone."""
    content = "".join(part.text for part in parts if part.kind == "text")
    reasoning = "".join(part.text for part in parts if part.kind == "reasoning")
    calls = [
        {"id": block.call_id, "type": "function", "function": {"name": block.name, "arguments": block.text}}
        for block in blocks(parts)
        if block.kind == "tool_call"
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if reasoning:
        message |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls:
        message |= {"content": content or None, "tool_calls": calls}
    return message


class MessageDeltas:
    """One choice's parts as the deltas of its stream."""

    def __init__(self) -> None:
        self._calls: list[str | None] = []

    def next(self, part: Part) -> dict[str, Any]:
        if part.kind == "text":
            return {"content": part.text}
        if part.kind == "reasoning":
            return {"reasoning_content": part.text, "reasoning": part.text}
        function: dict[str, Any] = {"arguments": part.text}
        call: dict[str, Any] = {"function": function}
        if part.call_id not in self._calls:
            self._calls.append(part.call_id)
            call |= {"id": part.call_id, "type": "function"}
            function["name"] = part.name
        return {"tool_calls": [{"index": self._calls.index(part.call_id)} | call]}
