"""Writes an answer as a Response object: whole, or as numbered events that end with the whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from statemark.engine.request import EngineRequest
from statemark.server.answer import Answer
from statemark.server.endpoint import named_event
from statemark.server.errors import from_exception
from statemark.server.job import Job
from statemark.server.parts import PartReader
from statemark.server.responses.convert import own_names
from statemark.server.responses.items import ItemStream
from statemark.server.responses.protocol import ResponsesRequest
from statemark.server.served import ServedModel


class ResponseWriter:
    """One request's answer. `reader` splits the text into reasoning, text and calls."""

    def __init__(self, asked: ResponsesRequest, model: ServedModel, request: EngineRequest, reader: PartReader) -> None:
        self.request = request
        self.reader = reader
        self.items = ItemStream(own_names(asked.tools))
        params = request.params
        self.head: dict[str, Any] = {
            "id": request.request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": msgspec.to_builtins(asked.reasoning) if asked.reasoning else None,
            "store": False,
            "temperature": params.temperature,
            "text": msgspec.to_builtins(asked.text) if asked.text else {"format": {"type": "text"}},
            "tool_choice": asked.tool_choice or "auto",
            "tools": msgspec.to_builtins(asked.tools or []),
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": asked.user,
        }

    async def whole(self, job: Job) -> dict[str, Any]:
        """The finished response; what fails raises."""
        answer = Answer([self.request])
        with job:
            async for delta in job:
                answer.add(delta)
                self._read(delta.text, delta.finish_reason, answer)
        return self._ended(answer)

    async def stream(self, job: Job) -> AsyncGenerator[bytes, None]:
        answer = Answer([self.request])
        begun = self._response("in_progress")
        number = 0

        def numbered(event: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return named_event(event | {"sequence_number": number - 1})

        yield numbered({"type": "response.created", "response": begun})
        yield numbered({"type": "response.in_progress", "response": begun})
        try:
            async for delta in job:
                answer.add(delta)
                for event in self._read(delta.text, delta.finish_reason, answer):
                    yield numbered(event)
            ended = self._ended(answer)
            yield numbered({"type": f"response.{ended['status']}", "response": ended})
        except Exception as error:
            told = from_exception(error)
            failed = self._response("failed", error={"code": "server_error", "message": told.message})
            yield numbered({"type": "response.failed", "response": failed})

    def _read(self, text: str, finish_reason: str | None, answer: Answer) -> list[dict[str, Any]]:
        """Events of one step's text."""
        parts = self.reader.push(text)
        if finish_reason is not None:
            parts += self.reader.finish()
        events: list[dict[str, Any]] = []
        for part in parts:
            events += self.items.write(part)
        if finish_reason is not None:
            events += self.items.close("incomplete" if finish_reason == "length" else "completed")
        return events

    def _response(self, status: str, **fields: Any) -> dict[str, Any]:
        rest = {"status": status, "output": self.items.items, "error": None, "incomplete_details": None, "usage": None}
        return self.head | rest | fields

    def _ended(self, answer: Answer) -> dict[str, Any]:
        choice = answer.choices(0)[0]
        cut = choice.finish_reason == "length"
        usage = answer.usage()
        tokens = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": choice.tokens_of(self.reader.reasoning_chars)},
            "total_tokens": usage["total_tokens"],
        }
        why = {"reason": "max_output_tokens"} if cut else None
        return self._response("incomplete" if cut else "completed", incomplete_details=why, usage=tokens)
