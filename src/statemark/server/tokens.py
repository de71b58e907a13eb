"""/tokenize and /detokenize: what a text or a conversation is in tokens, and back. Shapes are vLLM's."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from statemark.server.conversation import Conversation
from statemark.server.errors import JsonResponse, bad_request
from statemark.server.messages import template_messages
from statemark.server.protocol import Message, Struct
from statemark.server.state import ServerState


class TokenizeRequest(Struct):
    """`prompt`, or `messages` with what the chat template takes."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    messages: list[Message] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(Struct):
    tokens: list[int]
    model: str | None = None


async def tokenize(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    asked = state.parse(body, TokenizeRequest)
    model = state.model(asked.model)
    if (asked.prompt is None) == (asked.messages is None):
        raise bad_request("give prompt or messages, one of them", param="prompt")
    if asked.prompt is not None:
        ids = await state.text.run(model.encode, asked.prompt, add_special_tokens=asked.add_special_tokens)
    else:
        ids = (await _conversation(asked).render(state, model)).token_ids
    found: dict[str, Any] = {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids}
    found["token_strs"] = [model.token_text(token_id) for token_id in ids] if asked.return_token_strs else None
    return JsonResponse(found)


def _conversation(asked: TokenizeRequest) -> Conversation:
    return Conversation(
        messages=template_messages(asked.messages or []),
        tools=asked.tools,
        add_generation_prompt=asked.add_generation_prompt,
        continues=asked.continue_final_message,
        template_kwargs=asked.chat_template_kwargs,
    )


async def detokenize(http: Request, body: bytes) -> Response:
    state: ServerState = http.app.state.server
    asked = state.parse(body, DetokenizeRequest)
    model = state.model(asked.model)
    bad = [token for token in asked.tokens if not 0 <= token < model.vocab_size]
    if bad:
        raise bad_request(f"tokens: id {bad[0]} is outside 0 to {model.vocab_size - 1}", param="tokens")
    return JsonResponse({"prompt": await state.text.run(model.decode, asked.tokens)})
