"""The items of a Responses answer, and the events by which a client builds each of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from statemark.server.parts import Block, Part

Event = dict[str, Any]

_PREFIX = {"text": "msg_", "reasoning": "rs_", "tool_call": "fc_"}


def item_id(kind: str) -> str:
    return f"{_PREFIX[kind]}{uuid.uuid4().hex}"


def item(name: str, block: Block, status: str, call_name: Mapping[str, str]) -> dict[str, Any]:
    """`block` as an item of the answer, whole. `call_name`: a call's name, and its namespace if it has one."""
    if block.kind == "reasoning":
        content = [_part(block.kind, block.text)] if status != "in_progress" else []
        return {"id": name, "type": "reasoning", "summary": [], "content": content, "status": status}
    if block.kind == "tool_call":
        call = {"call_id": block.call_id, **call_name, "arguments": block.text}
        return {"id": name, "type": "function_call", **call, "status": status}
    content = [_part(block.kind, block.text)] if status != "in_progress" else []
    return {"id": name, "type": "message", "role": "assistant", "content": content, "status": status}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ItemStream:
    """Turns parts into events, item after item, and keeps the items for the answer's last frame.

    `own_names`: see `convert`.
    """

    def __init__(self, own_names: Mapping[str, Mapping[str, str]]) -> None:
        self._own_names = own_names
        self.items: list[dict[str, Any]] = []
        self._block: Block | None = None
        self._id = ""

    def write(self, part: Part) -> Iterator[Event]:
        block = self._block
        if block is None or (block.kind, block.call_id) != part.block:
            yield from self.close("completed")
            block = self._block = Block(part.kind, "", part.call_id, part.name)
            self._id = item_id(part.kind)
            shown = item(self._id, block, "in_progress", self._call_name(block))
            yield {"type": "response.output_item.added", "output_index": len(self.items), "item": shown}
            if part.kind != "tool_call":
                yield self._event("response.content_part.added", part=_part(part.kind, ""))
        if part.text:
            block.text += part.text
            more: Event = {"logprobs": []} if part.kind == "text" else {}
            yield self._event(f"{_text_event(part.kind)}.delta", delta=part.text, **more)

    def close(self, status: str) -> Iterator[Event]:
        """The end of the item that is open, if one is."""
        block, self._block = self._block, None
        if block is None:
            return
        done = f"{_text_event(block.kind)}.done"
        if block.kind == "tool_call":
            yield self._event(done, arguments=block.text, name=self._call_name(block)["name"])
        else:
            rest: Event = {"logprobs": []} if block.kind == "text" else {}
            yield self._event(done, text=block.text, **rest)
            yield self._event("response.content_part.done", part=_part(block.kind, block.text))
        whole = item(self._id, block, status, self._call_name(block))
        yield {"type": "response.output_item.done", "output_index": len(self.items), "item": whole}
        self.items.append(whole)

    def _call_name(self, block: Block) -> Mapping[str, str]:
        return {} if block.name is None else self._own_names.get(block.name, {"name": block.name})

    def _event(self, kind: str, **fields: Any) -> Event:
        where: Event = {"type": kind, "item_id": self._id, "output_index": len(self.items)}
        if not kind.startswith("response.function_call"):
            where["content_index"] = 0
        return where | fields


def _text_event(kind: str) -> str:
    return {
        "text": "response.output_text",
        "reasoning": "response.reasoning_text",
        "tool_call": "response.function_call_arguments",
    }[kind]
