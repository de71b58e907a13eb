"""/v1/chat/completions: messages in, a message out, streamed or whole."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from statemark.engine.outputs import TextDelta
from statemark.engine.params import MAX_LOGPROBS
from statemark.engine.request import EngineRequest
from statemark.server import logprobs as formats
from statemark.server.answer import Answer, Choice, StreamUsage
from statemark.server.chat_message import MessageDeltas, whole_message
from statemark.server.conversation import Conversation
from statemark.server.endpoint import DONE, EventStream, sse
from statemark.server.errors import JsonResponse, bad_request, from_exception
from statemark.server.handling import handling
from statemark.server.job import Job
from statemark.server.messages import template_messages
from statemark.server.protocol import ChatRequest
from statemark.server.reading import AnswerReader, answer_reader
from statemark.server.sampling import sampling_params
from statemark.server.served import ServedModel
from statemark.server.state import ServerState
from statemark.server.tool_use import NONE, ToolUse, tool_use


async def chat_completions(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    request = state.parse(body, ChatRequest)
    model = state.model(request.model)
    call = await _Call.prepare(request, state, model)
    job = await state.engine.submit([call.request])
    if request.stream:
        return EventStream(call.stream(job), job.close)
    answer = Answer([call.request])
    await answer.gather(job)
    return JsonResponse(call.whole(answer))


def _top_logprobs(request: ChatRequest) -> int | None:
    """How many log-probabilities the engine should give: None for none at all."""
    if not request.logprobs:
        if request.top_logprobs:
            raise bad_request("top_logprobs needs logprobs: true", param="top_logprobs")
        return None
    top = request.top_logprobs or 0
    if not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs must be between 0 and {MAX_LOGPROBS}, got {top}", param="top_logprobs")
    return top


def _refuse_unsupported(request: ChatRequest) -> None:
    """Fields that are known and whose other values aren't served yet: an error, never silence."""
    if None not in (request.max_tokens, request.max_completion_tokens):
        raise bad_request("give max_tokens or max_completion_tokens, not both", param="max_tokens")


def _tool_use(request: ChatRequest) -> ToolUse:
    choice = request.tool_choice
    if choice is None or isinstance(choice, str):
        return tool_use(choice, None, request.tools, parallel=request.parallel_tool_calls)
    if choice.type != "function":
        raise bad_request(f"tool_choice.type: {choice.type!r} is not supported; 'function' is", "tool_choice.type")
    return tool_use(None, choice.function.name, request.tools, parallel=request.parallel_tool_calls)


def _finish_reason(reason: str | None, reader: AnswerReader) -> str | None:
    return "tool_calls" if reason == "stop" and reader.called else reason


class _Call:
    """One request on its way: what was asked, and how its answer is written."""

    def __init__(
        self, asked: ChatRequest, model: ServedModel, request: EngineRequest, conversation: Conversation
    ) -> None:
        self.asked = asked
        self.conversation = conversation
        self.model = model
        self.request = request
        self.head = {
            "id": request.request_id,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    @classmethod
    async def prepare(cls, request: ChatRequest, state: ServerState, model: ServedModel) -> _Call:
        _refuse_unsupported(request)
        messages = template_messages(request.messages)
        max_tokens = request.max_completion_tokens if request.max_tokens is None else request.max_tokens
        params = sampling_params(
            request, model.sampling_defaults, max_tokens=max_tokens, logprobs=_top_logprobs(request)
        )
        conversation = Conversation(
            messages=messages,
            tools=None if request.tool_choice == NONE else request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continues=request.continue_final_message,
            template_kwargs=request.chat_template_kwargs,
            use=_tool_use(request),
        )
        engine_request = await conversation.request(state, model, params, handling(request, "chatcmpl-"))
        return cls(request, model, engine_request, conversation)

    def whole(self, answer: Answer) -> dict[str, Any]:
        choices = []
        readers: dict[int, AnswerReader] = {}
        for index, choice in enumerate(answer.choices(0)):
            reader = readers[index] = self._reader(hold=True)
            parts = [*reader.push(choice.text), *reader.finish()]
            item = {
                "index": index,
                "message": whole_message(parts),
                "logprobs": self._logprobs(choice),
                "finish_reason": _finish_reason(choice.finish_reason, reader),
                "stop_reason": choice.stop_reason,
            }
            if self.asked.return_token_ids:
                item["token_ids"] = choice.token_ids
            choices.append(item)
        whole = {"object": "chat.completion"} | self.head | {"choices": choices, "usage": self._usage(answer, readers)}
        return whole | self._prompt(answer)

    async def stream(self, job: Job) -> AsyncGenerator[bytes, None]:
        """A role frame a choice, its text, its finish frame; then usage if asked for; a failure is an error frame."""
        answer = Answer([self.request])
        readers: dict[int, AnswerReader] = {}
        usage = StreamUsage(self.asked.stream_options, lambda: self._usage(answer, readers))
        head = {"object": "chat.completion.chunk"} | self.head
        begun: dict[int, MessageDeltas] = {}
        try:
            async for delta in job:
                answer.add(delta)
                if delta.index not in begun:
                    first = self._frame(delta.index, {"role": "assistant", "content": ""})
                    yield sse(head | {"choices": [first]} | usage.now() | ({} if begun else self._prompt(answer)))
                    begun[delta.index] = MessageDeltas()
                    readers[delta.index] = self._reader(hold=False)
                reader, deltas = readers[delta.index], begun[delta.index]
                parts = reader.push(delta.text)
                if delta.finish_reason is not None:
                    parts += reader.finish()
                for frame in self._frames(delta, [deltas.next(part) for part in parts]):
                    yield sse(head | {"choices": [frame]} | usage.now())
                if delta.finish_reason is not None:
                    last = self._frame(delta.index, {})
                    last["finish_reason"] = _finish_reason(delta.finish_reason, reader)
                    last["stop_reason"] = delta.stop_reason
                    yield sse(head | {"choices": [last]} | usage.now())
            if usage.wanted:
                yield sse(head | {"choices": [], "usage": self._usage(answer, readers)})
        except Exception as error:
            yield sse(from_exception(error).body())
        yield DONE

    def _usage(self, answer: Answer, readers: Mapping[int, AnswerReader]) -> dict[str, Any]:
        """With the tokens of think sections, where this model has them."""
        if not self.model.chat_format.thinks:
            return answer.usage()
        choices = answer.choices(0)
        return answer.usage(
            reasoning_tokens=sum(choices[i].tokens_of(reader.reasoning_chars) for i, reader in readers.items())
        )

    def _reader(self, *, hold: bool) -> AnswerReader:
        return answer_reader(self.model, self.conversation, self.request, hold=hold)

    def _frames(self, news: TextDelta, told: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A frame for each of the message's deltas; the step's tokens go with the first."""
        piece = Choice()
        piece.add(news)
        if not told and news.token_ids and (self.asked.return_token_ids or self.asked.logprobs):
            told = [{"content": ""}]
        for number, delta in enumerate(told):
            yield self._frame(news.index, delta, piece if number == 0 else None)

    def _frame(self, index: int, delta: dict[str, Any], piece: Choice | None = None) -> dict[str, Any]:
        frame: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        if piece is not None:
            frame["logprobs"] = self._logprobs(piece)
            if self.asked.return_token_ids:
                frame["token_ids"] = piece.token_ids
        return frame

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if not self.asked.logprobs:
            return None
        named = formats.token_names(self.model, as_ids=self.asked.return_tokens_as_token_ids)
        return formats.chat_logprobs(self.model, named, choice.logprobs, self.asked.top_logprobs or 0)

    def _prompt(self, answer: Answer) -> dict[str, Any]:
        """What was asked about the prompt; vLLM puts it beside `choices`."""
        found: dict[str, Any] = {}
        if self.asked.prompt_logprobs is not None:
            rows = answer.prompt_logprobs.get(0, [])
            found["prompt_logprobs"] = formats.prompt_logprobs(self.model, rows, self.asked.prompt_logprobs)
        if self.asked.return_token_ids:
            found["prompt_token_ids"] = self.request.prompt_token_ids
        if self.asked.explain_cache:
            found["cache"] = answer.explained(0)
        return found
