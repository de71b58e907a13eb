"""What /v1/messages takes, as strict structs. Names are Anthropic's; an unknown field is an error that names it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from statemark.server.protocol import HandledRequest, Struct

CacheControl = dict[str, Any] | None  # accepted and without effect: every prompt is cached, to the token


class TextBlock(Struct, tag_field="type", tag="text"):
    text: str
    cache_control: CacheControl = None
    citations: list[dict[str, Any]] | None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None
    caller: dict[str, Any] | None = None


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool = False
    cache_control: CacheControl = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock


class InputMessage(Struct):
    role: str
    content: str | list[Block]


class Tool(Struct):
    """A tool that the client runs; those that Anthropic runs itself aren't served."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None
    cache_control: CacheControl = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoice(Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(Struct):
    """`budget_tokens` and `display` are accepted and without effect."""

    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Struct):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(Struct):
    """`effort` is accepted and without effect."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(HandledRequest, kw_only=True):
    """Fields that decide the prompt."""

    messages: list[InputMessage]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None
    context_management: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # ours, as in /v1/chat/completions


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None  # who asked; it changes nothing here
    service_tier: str | None = None
    inference_geo: str | None = None
    seed: int | None = None  # ours
