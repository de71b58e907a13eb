"""Writes an answer as an Anthropic message: whole, or as the events that its SDKs put together again."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from statemark.engine.request import EngineRequest
from statemark.server.answer import Answer, Choice
from statemark.server.endpoint import named_event
from statemark.server.errors import ApiError, from_exception
from statemark.server.job import Job
from statemark.server.parts import Block, Part, PartReader, blocks
from statemark.server.served import ServedModel

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Anthropic's error object."""
    kind = _ERROR_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessageWriter:
    """One request's answer."""

    def __init__(self, model: ServedModel, request: EngineRequest, reader: PartReader) -> None:
        self.request = request
        self.reader = reader
        self.head = {
            "id": request.request_id,
            "type": "message",
            "role": "assistant",
            "model": model.name,
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        choice = answer.choices(0)[0]
        parts = [*self.reader.push(choice.text), *self.reader.finish()]
        content = [_content(block) for block in blocks(parts)]
        ends = _ends(choice, any(part.kind == "tool_call" for part in parts))
        return self.head | {"content": content} | ends | {"usage": self._usage(answer, len(choice.token_ids))}

    async def stream(self, job: Job) -> AsyncGenerator[bytes, None]:
        """message_start, each block's start, deltas and stop, message_delta, message_stop; a failure is an error."""
        answer = Answer([self.request])
        writer = _Blocks()
        started = called = False
        try:
            async for delta in job:
                answer.add(delta)
                if not started:
                    started = True
                    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                    message = self.head | empty | {"usage": self._usage(answer, 0)}
                    yield named_event({"type": "message_start", "message": message})
                parts = self.reader.push(delta.text)
                if delta.finish_reason is not None:
                    parts += self.reader.finish()
                for part in parts:
                    called |= part.kind == "tool_call"
                    for event in writer.write(part):
                        yield named_event(event)
            for event in writer.close():
                yield named_event(event)
            choice = answer.choices(0)[0]
            usage = self._usage(answer, len(choice.token_ids))
            yield named_event({"type": "message_delta", "delta": _ends(choice, called), "usage": usage})
            yield named_event({"type": "message_stop"})
        except Exception as error:
            yield named_event(error_body(from_exception(error)))

    def _usage(self, answer: Answer, output_tokens: int) -> dict[str, int]:
        """Here `input_tokens` are those that had to be computed: what came from the cache is counted apart."""
        cached = answer.cached(0)
        return {
            "input_tokens": len(self.request.prompt_token_ids) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": output_tokens,
        }


def _ends(choice: Choice, called: bool) -> dict[str, Any]:
    sequence = choice.stop_reason if isinstance(choice.stop_reason, str) else None
    reason = "max_tokens"
    if choice.finish_reason != "length":
        reason = "stop_sequence" if sequence is not None else "tool_use" if called else "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _content(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "tool_call":
        try:
            arguments = json.loads(block.text or "{}")
        except ValueError:  # the reader gives a call only when it is whole; a cut answer is shown as far as it went
            arguments = {}
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": arguments}
    return {"type": "text", "text": block.text}


class _Blocks:
    """Numbers the blocks of a streamed message, opens and closes them."""

    def __init__(self) -> None:
        self.index = -1
        self.open: Part | None = None

    def write(self, part: Part) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if self.open is None or self.open.block != part.block:
            events += self.close()
            self.index += 1
            self.open = part
            block = _content(Block(part.kind, "", part.call_id, part.name))
            events.append({"type": "content_block_start", "index": self.index, "content_block": block})
        if part.text:
            events.append({"type": "content_block_delta", "index": self.index, "delta": _delta(part)})
        return events

    def close(self) -> list[dict[str, Any]]:
        if self.open is None:
            return []
        self.open = None
        return [{"type": "content_block_stop", "index": self.index}]


def _delta(part: Part) -> dict[str, str]:
    if part.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": part.text}
    if part.kind == "tool_call":
        return {"type": "input_json_delta", "partial_json": part.text}
    return {"type": "text_delta", "text": part.text}
