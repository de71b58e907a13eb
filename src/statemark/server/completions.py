"""/v1/completions: prompts as text or token ids, legacy log-probabilities, echo, streaming."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from statemark.engine.request import EngineRequest, TokenLogprobs
from statemark.server import logprobs as formats
from statemark.server.answer import Answer, Choice, StreamUsage
from statemark.server.conversation import compiled
from statemark.server.endpoint import DONE, EventStream, sse
from statemark.server.errors import JsonResponse, bad_request, from_exception
from statemark.server.handling import handling
from statemark.server.job import Job
from statemark.server.protocol import CompletionRequest
from statemark.server.sampling import sampling_params
from statemark.server.served import ServedModel
from statemark.server.state import ServerState

_DEFAULT_MAX_TOKENS = 16


async def completions(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    request = state.parse(body, CompletionRequest)
    model = state.model(request.model)
    call = await _Call.prepare(request, state, model)
    job = await state.engine.submit(call.requests)
    if request.stream:
        return EventStream(call.stream(job), job.close)
    answer = Answer(call.requests)
    await answer.gather(job)
    return JsonResponse(call.whole(answer))


def prompt_list(prompt: Any) -> list[str | list[int]]:
    """The four forms of `prompt` as one list of prompts."""

    def is_ids(value: Any) -> bool:
        return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)

    if isinstance(prompt, str) or is_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and prompt and all(isinstance(item, str) or is_ids(item) for item in prompt):
        return prompt
    raise bad_request(
        "prompt must be a string, a list of strings, a list of token ids or a list of lists of token ids, none empty",
        param="prompt",
        code="invalid_type",
    )


class _Call:
    """One request on its way: what was asked, and how its answer is written."""

    def __init__(
        self, request: CompletionRequest, model: ServedModel, prompts: Sequence[str], requests: list[EngineRequest]
    ) -> None:
        self.asked = request
        self.model = model
        self._named = formats.token_names(model, as_ids=request.return_tokens_as_token_ids)
        self.prompts = prompts  # as text, for echo
        self.requests = requests
        self.head = {
            "id": requests[0].request_id.rsplit("-", 1)[0],
            "object": "text_completion",
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        # Scoring: `echo` with max_tokens 0 wants the prompt's numbers alone. One token is computed and not shown.
        self.scoring = request.echo and request.max_tokens == 0

    @classmethod
    async def prepare(cls, request: CompletionRequest, state: ServerState, model: ServedModel) -> _Call:
        max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        if request.echo:
            max_tokens = max_tokens or 1  # see `scoring`
        params = sampling_params(request, model.sampling_defaults, max_tokens=max_tokens, logprobs=request.logprobs)
        if request.echo and request.logprobs is not None:
            params = replace(params, prompt_logprobs=max(request.logprobs, request.prompt_logprobs or 0))
        prompts = prompt_list(request.prompt)
        outside = [t for p in prompts if not isinstance(p, str) for t in p if not 0 <= t < model.vocab_size]
        if outside:  # before `echo` asks for their text
            raise bad_request(f"token id {outside[0]} is outside 0 to {model.vocab_size - 1}", param="prompt")

        def encode_all() -> tuple[list[list[int]], list[str]]:
            ids = [
                model.encode(p, add_special_tokens=request.add_special_tokens) if isinstance(p, str) else p
                for p in prompts
            ]
            texts = [p if isinstance(p, str) else model.decode(p) for p in prompts] if request.echo else []
            return ids, texts

        ids, texts = await state.text.run(encode_all)
        constraint = await compiled(state, model, params)
        how = handling(request, "cmpl-")
        requests = [
            EngineRequest(
                request_id=f"{how.name}-{number}",
                prompt_token_ids=tuple(prompt_ids),
                params=params,
                eos_token_ids=model.eos_token_ids,
                constraint=constraint,
                **how.engine_fields(),
            )
            for number, prompt_ids in enumerate(ids)
        ]
        return cls(request, model, texts, requests)

    def whole(self, answer: Answer) -> dict[str, Any]:
        choices = [
            self._part(answer, number, index, choice, first=True)
            for number in range(len(self.requests))
            for index, choice in enumerate(answer.choices(number))
        ]
        return self.head | {"choices": choices, "usage": self._usage(answer)}

    async def stream(self, job: Job) -> AsyncGenerator[bytes, None]:
        """Frames to the end of all choices; a failure becomes an error frame."""
        answer = Answer(self.requests)
        usage = StreamUsage(self.asked.stream_options, lambda: self._usage(answer))
        offsets: dict[tuple[int, int], int] = {}  # characters sent so far, of each choice that has begun
        try:
            async for delta in job:
                number = answer.add(delta)
                key = (number, delta.index)
                piece = Choice()
                piece.add(delta)
                part = self._part(answer, *key, piece, first=key not in offsets, offset=offsets.get(key, 0))
                offsets[key] = offsets.get(key, 0) + len(part["text"])
                yield sse(self.head | {"choices": [part]} | usage.now())
            if usage.wanted:
                yield sse(self.head | {"choices": [], "usage": self._usage(answer)})
        except Exception as error:
            yield sse(from_exception(error).body())
        yield DONE

    def _part(
        self, answer: Answer, number: int, index: int, piece: Choice, *, first: bool, offset: int = 0
    ) -> dict[str, Any]:
        """A choice, or the next piece of one; what concerns the prompt goes with the first piece."""
        asked, request = self.asked, self.requests[number]
        if self.scoring:
            reason = piece.finish_reason and "length"
            piece = Choice(finish_reason=reason)
        text, ids = piece.text, list(piece.token_ids)
        rows: list[TokenLogprobs | None] = list(piece.logprobs)
        prompt_rows = answer.prompt_logprobs.get(number) if first else None
        if asked.echo and first:
            text = self.prompts[number] + text
            if prompt_rows is not None:
                ids = [*request.prompt_token_ids, *ids]
                rows = [*prompt_rows, *rows]
        part: dict[str, Any] = {
            "index": number * request.params.n + index,
            "text": text,
            "logprobs": None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if asked.logprobs is not None:
            part["logprobs"] = formats.legacy_logprobs(self._named, ids, rows, asked.logprobs, offset)
        if asked.prompt_logprobs is not None and prompt_rows is not None:
            part["prompt_logprobs"] = formats.prompt_logprobs(self.model, prompt_rows, asked.prompt_logprobs)
        if asked.return_token_ids:
            part["token_ids"] = piece.token_ids
            if first:
                part["prompt_token_ids"] = request.prompt_token_ids
        if asked.explain_cache and first:
            part["cache"] = answer.explained(number)
        return part

    def _usage(self, answer: Answer) -> dict[str, Any]:
        return answer.usage(completion_tokens=0 if self.scoring else None)
