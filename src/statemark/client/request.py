"""One completion request, and its body in the words of each server. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statemark.client.target import Target


@dataclass(frozen=True, kw_only=True)
class Ask:
    """`prompt` as text or token ids, or `messages` for a chat.

    `cache` False: computed as if nothing were cached, where the server can do that. `logprobs`: how many likely tokens
    to tell of each position. `beyond_eos` goes on past the end of turn: only for company whose answer nobody looks at,
    or where an operator asked for it.
    """

    prompt: list[int] | str = ""
    messages: tuple[dict[str, Any], ...] = ()
    max_tokens: int = 16
    salt: str | None = None
    logprobs: int | None = None
    beyond_eos: bool = False
    cache: bool = True
    want_ids: bool = False


def path_of(ask: Ask) -> str:
    return "/v1/chat/completions" if ask.messages else "/v1/completions"


def body_of(ask: Ask, target: Target, *, stream: bool) -> dict[str, Any]:
    """The body for `path_of`: greedy, one choice, and only fields that this server knows."""
    body: dict[str, Any] = {
        "model": target.model,
        **({"messages": list(ask.messages)} if ask.messages else {"prompt": ask.prompt}),
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if ask.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": ask.logprobs} if ask.messages else {"logprobs": ask.logprobs}
        if target.make in ("statemark", "vllm"):
            body["return_tokens_as_token_ids"] = True  # two ids may have one text
    if ask.salt is not None and target.salts:
        body["cache_salt"] = ask.salt
    if target.uncached:
        body["cache_prompt"] = ask.cache
    if ask.beyond_eos:
        body["ignore_eos"] = True
    if ask.want_ids and target.make in ("statemark", "vllm"):
        body["return_token_ids"] = True
    return body
