"""One call on its way out, whatever its format: offered names only, and the last brace only at a good end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from statemark.parsing.events import CallArguments, CallBroken, CallEnd, CallStart, Event
from statemark.parsing.source import MalformedError, Source, Steps

Tools: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Offered tools: name -> JSON schema of the arguments ({} where the client gave none)."""


class CallWriter:
    """Turns what a format's parser finds into events. A client never holds a whole JSON object of a call that is void.

    `confirm` ends a call: all that follows belongs to the next. `void` gives up the one that was started.
    """

    def __init__(
        self, source: Source, tools: Tools, emit: Callable[[Event], None], max_calls: int | None = None
    ) -> None:
        self.tools = tools
        self._left = max_calls
        self._source = source
        self._emit = emit
        self._index = -1
        self._open = False
        self._held = ""

    def start(self, name: str) -> None:
        if name not in self.tools:
            raise MalformedError(f"no tool {name!r} was offered")
        if self._left == 0:
            raise MalformedError("one call more than was asked for")
        self._index += 1
        self._open, self._held = True, ""
        self._emit(CallStart(self._index, name))

    def write(self, text: str) -> None:
        """The next piece of the arguments; its last character waits for what follows."""
        text = self._held + text
        self._held = text[-1:]
        if text[:-1]:
            self._emit(CallArguments(self._index, text[:-1]))

    def whole(self, name: str, arguments: str) -> None:
        self.start(name)
        self.write(arguments)

    def confirm(self) -> None:
        self._emit(CallArguments(self._index, self._held))
        self._emit(CallEnd(self._index))
        self._open = False
        if self._left is not None:
            self._left -= 1
        self._source.cut()

    def void(self) -> bool:
        """Give up the call that was started, if one was; says whether."""
        was_open, self._open = self._open, False
        if was_open:
            self._emit(CallBroken(self._index))
        return was_open


Body = Callable[[Source, CallWriter], Steps[None]]
"""Parses what stands between a format's markers and confirms each call in it; raises MalformedError."""
