"""What /v1/responses takes, as strict structs. An unknown field is an error that names it."""

from __future__ import annotations

from typing import Any

from statemark.server.protocol import HandledRequest, Struct


class TextPart(Struct):
    """input_text, output_text, reasoning_text or summary_text."""

    type: str
    text: str
    annotations: list[dict[str, Any]] | None = None  # as answers carry them; not shown to the model
    logprobs: list[dict[str, Any]] | None = None
    prompt_cache_breakpoint: dict[str, Any] | None = None  # without effect: every prompt is cached, to the token


class MessageItem(Struct, tag_field="type", tag="message"):
    role: str
    content: str | list[TextPart]
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Struct, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None
    namespace: str | None = None


class CallOutputItem(Struct, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str | list[TextPart]
    id: str | None = None
    status: str | None = None


class ReasoningItem(Struct, tag_field="type", tag="reasoning"):
    id: str | None = None
    summary: list[TextPart] | None = None
    content: list[TextPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None


Item = MessageItem | CallItem | CallOutputItem | ReasoningItem


class FunctionTool(Struct):
    """A function, or of type "namespace" a group of them in `tools`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    tools: list[FunctionTool] | None = None


class TextFormat(Struct):
    type: str = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Struct):
    """`verbosity` is accepted and without effect."""

    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(Struct):
    """`effort` "none" asks for an answer without reasoning; the rest is accepted and without effect."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class StreamOptions(Struct):
    include_obfuscation: bool | None = None


class ResponsesRequest(HandledRequest, kw_only=True):
    """Fields without a note do what OpenAI says; `store` has no effect, since nothing is stored."""

    input: str | list[Item]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: Reasoning | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    # Accepted and without effect on the answer.
    client_metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    user: str | None = None
    # Ours, as in /v1/chat/completions.
    top_k: int | None = None
    seed: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @classmethod
    def prepared(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """A message may come without its type."""
        items = raw.get("input")
        return raw | {"input": [_typed(item) for item in items]} if isinstance(items, list) else raw


def _typed(item: Any) -> Any:
    return {"type": "message", **item} if isinstance(item, dict) and "role" in item else item
