"""The requests that the API takes, as strict structs, and how a body becomes one. Knows no engine.

Field names are OpenAI's; those that OpenAI doesn't have are vLLM's. An unknown field is an error that names it.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from statemark.server.errors import ApiError, bad_request

T = TypeVar("T", bound="Struct")


class Struct(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of all request structs. None means "not given" for every optional field."""

    @classmethod
    def prepared(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """The body as it is to be read, where an API allows more than one form of it."""
        return raw


class StreamOptions(Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False  # usage so far in every frame
    include_obfuscation: bool = False  # padding against who counts bytes on the wire; there is none


class JsonSchemaFormat(Struct):
    """`strict` has no effect: a schema is always followed."""

    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct):
    type: str
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(Struct):
    """Exactly one of them. `json` is a schema, `grammar` one in Lark's form or llama.cpp's (GBNF)."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class HandledRequest(Struct):
    """How a request wants to be treated, in every API; see `handling`. The names are vLLM's and llama-server's."""

    request_id: str | None = None
    priority: int = 0  # a smaller number is served earlier
    cache_salt: str | None = None
    cache_prompt: bool = True


class CommonRequest(HandledRequest):
    """What /v1/completions and /v1/chat/completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False  # log-probabilities name tokens token_id:N: several may have one text
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None  # vLLM's older names for the same
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    explain_cache: bool = False  # ours: say what the prefix cache had for the prompt, and what stood in the way
    # OpenAI's notes of who asked and how to file it; they change nothing here.
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    store: bool | None = None


class CompletionRequest(CommonRequest, kw_only=True):
    """`prompt` is a string, a list of strings, a list of token ids or a list of such lists."""

    prompt: Any
    echo: bool = False
    logprobs: int | None = None
    add_special_tokens: bool = True


class FunctionCall(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    function: FunctionCall
    id: str | None = None
    type: str = "function"
    index: int | None = None  # in calls that were put together from a stream


class ToolName(Struct):
    name: str


class ToolChoice(Struct):
    function: ToolName
    type: str = "function"


class Message(Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None  # clients send an answer's message back as it came


class ChatRequest(CommonRequest, kw_only=True):
    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


_MOST_UNKNOWN = 1000  # that a lenient server takes out of one request
_UNKNOWN = re.compile(r"unknown field `(?P<field>[^`]*)`(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?P<path>.*))?$", re.DOTALL)


def parse(body: bytes, kind: type[T], *, lenient: bool = False) -> T:
    """The body as a `kind`, or a 400 that names the field. Lenient drops fields that are not known, at any depth."""
    try:
        raw = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(raw, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    raw = kind.prepared(raw)
    unknown = sorted(set(raw) - set(kind.__struct_fields__))
    if lenient:
        raw = {name: value for name, value in raw.items() if name not in unknown}
        return _convert_known(raw, kind)
    if unknown:
        names = ", ".join(repr(name) for name in unknown)
        raise bad_request(
            f"unknown field{'s' if len(unknown) > 1 else ''}: {names}", param=unknown[0], code="unknown_field"
        )
    try:
        return msgspec.convert(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None


def _convert_known(raw: dict[str, Any], kind: type[T]) -> T:
    """Takes out one unknown field after the other, as the conversion names them."""
    for _ in range(_MOST_UNKNOWN):
        try:
            return msgspec.convert(raw, type=kind)
        except msgspec.ValidationError as error:
            match = _UNKNOWN.search(str(error))
            if match is None:
                raise _named(str(error)) from None
            holder: Any = raw
            for name, index in _STEP.findall(match["path"] or ""):
                holder = holder[int(index) if index else name]
            del holder[match["field"]]
    raise bad_request(f"more than {_MOST_UNKNOWN} unknown fields", code="unknown_field")


def _named(text: str) -> ApiError:
    """msgspec's "Expected `int`, got `str` - at `$.messages[0].role`" as a 400 with param `messages[0].role`."""
    match = _WHERE.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    field = path.replace("`", "").removeprefix("$").removeprefix(".")
    missing = re.search(r"missing required field `([^`]*)`", what)
    extra = re.search(r"unknown field `([^`]*)`", what)
    named = missing or extra
    if named:
        field = f"{field}.{named[1]}" if field else named[1]
        return bad_request(
            f"{'missing' if missing else 'unknown'} field: {field!r}",
            param=field,
            code="missing_field" if missing else "unknown_field",
        )
    what = what[:1].lower() + what[1:].replace("`", "").replace(" | null", "")
    return bad_request(f"{field}: {what}" if field else what, param=field or None, code="invalid_type")
