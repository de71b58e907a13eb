"""Chat messages to a prompt: Jinja templates as transformers runs them, and the token positions at which messages end.

Owns the template environment and what messages look like to templates. Knows no model family: see turns.py for how
positions are found without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from statemark.engine.system_messages import rendered
from statemark.engine.turns import MARK, TurnFinder, token_turns
from statemark.errors import ConfigurationError, InvalidRequestError

Message = dict[str, Any]
Encode = Callable[[str], tuple[list[int], list[tuple[int, int]]]]
"""Token ids of a text, without tokens of the tokenizer's own at its ends, and the characters that each comes from."""

_OURS = ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message")
# Appended to the message that is to be continued, to find its end in the rendering. Templates may cut white space at
# the end of a message, so the mark ends in some: whether it survives says whether the message's own does.
_SPACE = "\u2003"


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model is trained on; rendering takes it as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter: no HTML escapes, which models were not trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


@dataclass(frozen=True)
class ChatPrompt:
    """`turn_positions`: token counts at which a message ends, the last one just before the generation header.

    `turn_roles`: whose text begins at 0 and at each of them (see `Turns`).
    """

    text: str
    token_ids: list[int]
    turn_positions: tuple[int, ...]
    turn_roles: tuple[str, ...] = ()


class ChatTemplate:
    """One compiled template with the special tokens that it may name."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError(f"the chat template has a syntax error in line {error.lineno}: {error}") from None
        self._special = dict(special_tokens or {})
        self._turns = TurnFinder()

    def prompt(
        self,
        encode: Encode,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = "",
    ) -> ChatPrompt:
        """Rendered, tokenized, with its turn positions. What the template says against it is InvalidRequestError.

        Earlier prompts of the same `cache_salt` make this one quicker, those of others don't: time would tell that
        somebody else sent the same. None: only text and tokens are wanted; where messages end is neither looked for
        nor remembered.
        """
        plain = plain_messages(messages)
        render = self._renderer(tools, template_kwargs or {})
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other: one goes on with the last "
                "message, the other begins a new one",
                hint="set add_generation_prompt to false",
                param="continue_final_message",
            )

        def whole(messages: list[Message]) -> str:
            return _continued(render, messages) if continue_final_message else render(messages, add_generation_prompt)

        plain, text = rendered(whole, plain)
        token_ids, spans = encode(text)
        if cache_salt is None:
            return ChatPrompt(text, token_ids, ())
        context = json.dumps([cache_salt, list(tools or ()), dict(template_kwargs or {})], sort_keys=True, default=repr)
        begins = self._turns.begins(lambda part: render(part, False), plain, text, context=context)
        turns = token_turns(spans, begins, [message["role"] for message in plain])
        return ChatPrompt(text, token_ids, turns.positions, turns.roles)

    def _renderer(
        self, tools: Sequence[Mapping[str, Any]] | None, kwargs: Mapping[str, Any]
    ) -> Callable[[list[Message], bool], str]:
        reserved = sorted(set(kwargs) & set(_OURS))
        if reserved:
            raise InvalidRequestError(
                f"chat_template_kwargs can't set {', '.join(reserved)}", param=f"chat_template_kwargs.{reserved[0]}"
            )
        if tools is not None and not all(isinstance(tool, Mapping) for tool in tools):
            raise InvalidRequestError("tools must be a list of JSON objects", param="tools")
        now = datetime.now()  # one time for all renderings of a prompt: a clock must not tick between them
        context: dict[str, Any] = {**self._special, "tools": list(tools) if tools else None, "documents": None}
        context |= {"strftime_now": now.strftime, **kwargs}

        def render(messages: list[Message], add_generation_prompt: bool) -> str:
            try:
                return self._template.render(context, messages=messages, add_generation_prompt=add_generation_prompt)
            except Exception as error:  # whatever a template does wrong with these messages
                raise InvalidRequestError(
                    f"the chat template refuses these messages: {_reason(error)}", param="messages"
                ) from error

        return render


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages as templates know them: content as one string, tool arguments as an object, reasoning by both names."""
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequestError("messages must be a list of objects with a role and a content", param="messages")
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a role and a content", param=where)
    if not isinstance(message.get("role"), str):
        raise InvalidRequestError(f"{where}.role must be a string, got {message.get('role')!r}", param=f"{where}.role")
    plain = dict(message)
    plain["content"] = _text(message.get("content"), f"{where}.content")
    if message.get("tool_calls"):
        plain["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message["tool_calls"])
        ]
    for name, other in (("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")):
        if message.get(name) is not None and message.get(other) is None:
            plain[other] = message[name]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"{where} must be a string or a list of text parts", param=where)
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(
                f"{where}[{i}] is not a text part", hint='only {"type": "text", "text": ...} is supported', param=where
            )
    return "".join(part["text"] for part in content)


def _tool_call(call: Any, where: str) -> Any:
    """Templates go through the arguments by name; clients send them as a string of JSON."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as error:
        where = f"{where}.function.arguments"
        raise InvalidRequestError(f"{where} is not valid JSON: {error}", param=where) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _continued(render: Callable[[list[Message], bool], str], messages: list[Message]) -> str:
    """The rendering up to the end of the last message's content, without what the template puts after it."""
    last = messages[-1]
    marked = render([*messages[:-1], {**last, "content": last["content"] + MARK + _SPACE}], False)
    at = marked.rfind(MARK)
    if at < 0:
        raise InvalidRequestError(
            "the last message can't be continued: the chat template doesn't show its content", param="messages"
        )
    spaced = marked.startswith(_SPACE, at + len(MARK))
    return marked[:at] if spaced else marked[:at].rstrip()


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError) and error.message:
        return error.message
    return f"{type(error).__name__}: {error}"
