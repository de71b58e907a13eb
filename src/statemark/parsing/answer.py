"""An answer's text, as it comes, into reasoning, content and tool calls. Owns where each begins; knows no HTTP.

Every character of the answer is in some event, but for the markers of what was recognised and the white space beside
them (and within a call, the layout of its JSON).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from statemark.parsing.calls import CallWriter, Tools
from statemark.parsing.events import CallArguments, Content, Event, Reasoning
from statemark.parsing.formats import THINK, THINK_END, ChatFormat, ToolFormat
from statemark.parsing.source import MalformedError, Source, Steps, begun

_SPACE = " \t\r\n"


class AnswerParser:
    """`push` what comes, `finish` once at the end; both give events. Give a parser to each choice.

    `tools` are those that were offered; without any, calls are not looked for. `max_calls` leaves later ones as text.
    """

    def __init__(
        self,
        form: ChatFormat,
        *,
        in_reasoning: bool = False,
        tools: Tools | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._source = Source()
        self._events: list[Event] = []
        self._calls = CallWriter(self._source, tools or {}, self._events.append, max_calls)
        self._reasoned: int | None = 0
        self._steps = self._answer(form.thinks, form.tools if tools else None, in_reasoning)
        self._ended = False
        self._advance()

    @property
    def reasoning_chars(self) -> int:
        """Characters from the answer's beginning to the end of its think section, tags included; of those so far."""
        if self._reasoned is None:
            return self._source.forgotten + len(self._source.data)
        return self._reasoned

    def push(self, text: str) -> list[Event]:
        self._source.push(text)
        self._advance()
        return self._taken()

    def finish(self) -> list[Event]:
        self._source.close()
        self._advance()
        return self._taken()

    def _advance(self) -> None:
        if not self._ended:
            self._ended = next(self._steps, self) is self

    def _taken(self) -> list[Event]:
        """The events since last time, neighbours of a kind joined."""
        joined: list[Event] = []
        for event in self._events:
            last = joined[-1] if joined else None
            match last, event:
                case (Content(a), Content(b)):
                    joined[-1] = Content(a + b)
                case (Reasoning(a), Reasoning(b)):
                    joined[-1] = Reasoning(a + b)
                case (CallArguments(i, a), CallArguments(j, b)) if i == j:
                    joined[-1] = CallArguments(i, a + b)
                case _:
                    joined.append(event)
        self._events.clear()
        return joined

    # --- the grammar of an answer ---------------------------------------------------------------------------

    def _content(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _reasoning(self, text: str) -> None:
        if text:
            self._events.append(Reasoning(text))

    def _answer(self, thinks: bool, form: ToolFormat | None, in_reasoning: bool) -> Steps[None]:
        source = self._source
        if thinks and not in_reasoning:
            # Later think tags are text: somebody writes about them.
            yield from source.space()
            in_reasoning = yield from source.accept(THINK)
            if not in_reasoning:
                source.at = 0
        if thinks and in_reasoning:
            self._reasoned = None
            source.cut()
            yield from source.space()
            source.cut()
            if (yield from self._text_until([THINK_END], self._reasoning)) is not None:
                self._reasoned = source.forgotten + source.at
                yield from source.space()
                source.cut()
        markers = list(form.markers) if form is not None else []
        while True:
            marker = yield from self._text_until(markers, self._content)
            if marker is None or form is None:
                return
            yield from self._body(form, marker)

    def _text_until(self, markers: list[str], emit: Callable[[str], None]) -> Steps[str | None]:
        """Pass text on up to the first marker, which is returned; None when the text ends first.

        It stops behind the marker, with that and the white space before it still in `source`.
        """
        source = self._source
        pattern = re.compile("|".join(map(re.escape, markers))) if markers else None
        while True:
            found = pattern.search(source.data, source.at) if pattern else None
            end = found.start() if found else len(source.data) - begun(source.data[source.at :], markers)
            if source.closed and not found:
                end = len(source.data)
            elif pattern:
                while end > source.at and source.data[end - 1] in _SPACE:
                    end -= 1
            emit(source.data[source.at : end])
            source.at = end
            source.cut()
            if found:
                source.at = found.end() - end
                return found[0]
            if source.closed:
                return None
            yield

    def _body(self, form: ToolFormat, marker: str) -> Steps[None]:
        """One pair of markers with calls in it. What is malformed goes out as text, up to its end marker."""
        source, calls, close = self._source, self._calls, form.markers[marker]
        inner = marker in form.inner
        begin = source.at
        try:
            if inner:
                source.at -= len(marker)
            else:
                yield from source.space()
            begin = source.at
            yield from form.body(source, calls)
            yield from source.space()
            if close and (yield from source.peek()):
                yield from source.expect(close)
            calls.confirm()
            yield from source.space()
            if not (yield from source.peek()):
                source.cut()
            source.at = 0
        except MalformedError:
            tried = calls.void() or (source.at > begin and not inner)
            self._pass_on()
            # What a broken call holds is not looked at: a call quoted in its arguments must not become one.
            if tried and (yield from self._text_until(form.end_of_broken(marker), self._content)):
                self._pass_on()

    def _pass_on(self) -> None:
        self._content(self._source.data[: self._source.at])
        self._source.cut()
