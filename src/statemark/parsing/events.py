"""What a parsed answer consists of, piece by piece and gathered. Knows no format and no HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of a think section, without its tags."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call of a tool that was offered; `index` counts from 0 within one answer."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments. The pieces of an ended call make one JSON object."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    """The call is complete and valid. Only now was its arguments' last brace given."""

    index: int


@dataclass(frozen=True)
class CallBroken:
    """A call that had started is malformed or was cut off: it is void, and its source follows as content."""

    index: int


Event: TypeAlias = Content | Reasoning | CallStart | CallArguments | CallEnd | CallBroken


@dataclass
class Call:
    name: str
    arguments: str = ""
    complete: bool = False


@dataclass
class ParsedAnswer:
    """All events of one answer, gathered."""

    content: str = ""
    reasoning: str = ""
    started: dict[int, Call] = field(default_factory=dict)

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case Content(text):
                    self.content += text
                case Reasoning(text):
                    self.reasoning += text
                case CallStart(index, name):
                    self.started[index] = Call(name)
                case CallArguments(index, text):
                    self.started[index].arguments += text
                case CallEnd(index):
                    self.started[index].complete = True
                case CallBroken(index):
                    del self.started[index]

    @property
    def calls(self) -> list[Call]:
        """Complete calls, in order."""
        return [call for _, call in sorted(self.started.items()) if call.complete]
