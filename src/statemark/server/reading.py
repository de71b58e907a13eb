"""Reads answers: which parser a model's answers need, and its events as parts. Knows no API's names."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from statemark.engine.request import EngineRequest
from statemark.parsing import (
    HEADER_TOKENS,
    AnswerParser,
    CallArguments,
    CallBroken,
    CallEnd,
    CallStart,
    Content,
    Event,
    Reasoning,
    opens_reasoning,
)
from statemark.server.conversation import Conversation
from statemark.server.errors import ApiError
from statemark.server.parts import Part
from statemark.server.served import ServedModel
from statemark.server.tool_use import ToolUse, offered


class AnswerReader:
    """A `PartReader` for one choice. `called` says whether a whole, valid call was among its parts.

    With `hold`, a call's parts come only once it is whole: where a client can't be told that what it saw was void.
    """

    def __init__(self, parser: AnswerParser, use: ToolUse, *, hold: bool) -> None:
        self.called = False
        self._parser = parser
        self._use = use
        self._hold = hold
        self._call: tuple[str, str] | None = None  # id and name of the call that is being read
        self._held: list[Part] = []

    @property
    def reasoning_chars(self) -> int:
        return self._parser.reasoning_chars

    def push(self, text: str) -> list[Part]:
        return self._parts(self._parser.push(text))

    def finish(self) -> list[Part]:
        """Raises where a call was asked for and none came."""
        parts = self._parts(self._parser.finish())
        wanted = self._use.must_call
        if wanted is not None and not self.called:
            what = f"a call of {wanted!r}" if wanted else "a tool call"
            raise ApiError(
                422, f"the model wrote no valid {what[2:]}, which tool_choice asks for", code="tool_call_missing"
            )
        return parts

    def _parts(self, events: Sequence[Event]) -> list[Part]:
        parts: list[Part] = []
        for event in events:
            match event:
                case Content(text):
                    parts.append(Part("text", text))
                case Reasoning(text):
                    parts.append(Part("reasoning", text))
                case CallStart(_, name):
                    self._call = (f"call_{uuid.uuid4().hex[:24]}", name)
                    self._add(parts, Part("tool_call", "", *self._call))
                case CallArguments(_, text):
                    assert self._call is not None
                    self._add(parts, Part("tool_call", text, *self._call))
                case CallEnd():
                    self.called = True
                    parts += self._held
                    self._held.clear()
                case CallBroken():
                    self._held.clear()
        return parts

    def _add(self, parts: list[Part], part: Part) -> None:
        (self._held if self._hold else parts).append(part)


def answer_reader(
    model: ServedModel, conversation: Conversation, request: EngineRequest, *, hold: bool = True
) -> AnswerReader:
    """One for each choice of a request."""
    tools = offered(conversation.tools)
    use = conversation.use
    if use.must_call:
        tools = {use.must_call: tools[use.must_call]}
    continued = conversation.messages[-1].get("content") if conversation.continues else None
    header = model.decode(request.prompt_token_ids[-HEADER_TOKENS:])
    opened = opens_reasoning(header, continued if isinstance(continued, str) else None)
    parser = AnswerParser(
        model.chat_format,
        in_reasoning=opened and (conversation.add_generation_prompt or conversation.continues),
        tools=tools,
        max_calls=1 if use.one_call else None,
    )
    return AnswerReader(parser, use, hold=hold)
