"""An answer as a row of parts - text, reasoning, tool calls - whatever API it is written for. Knows no API's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["text", "reasoning", "tool_call"]


@dataclass(frozen=True)
class Part:
    """A piece of an answer. Pieces that follow each other with the same `kind` and `call_id` belong together.

    `text` is new text; of a tool call it is the next piece of its arguments, JSON. `call_id` and `name` are a tool
    call's and go with each of its pieces.
    """

    kind: Kind
    text: str = ""
    call_id: str | None = None
    name: str | None = None

    @property
    def block(self) -> tuple[str, str | None]:
        return self.kind, self.call_id


class PartReader(Protocol):
    """Reads one choice's text piece by piece."""

    @property
    def reasoning_chars(self) -> int:
        """Characters of the think section so far."""

    def push(self, text: str) -> list[Part]:
        """What is certain after this text; the reader may hold some of it back."""

    def finish(self) -> list[Part]:
        """What was held back, once the choice has ended."""


@dataclass
class Block:
    """A part with all of its text."""

    kind: Kind
    text: str
    call_id: str | None = None
    name: str | None = None


def blocks(parts: list[Part]) -> Iterator[Block]:
    """Whole parts, from pieces in order."""
    current: Block | None = None
    for part in parts:
        if current is not None and (current.kind, current.call_id) == part.block:
            current.text += part.text
            continue
        if current is not None:
            yield current
        current = Block(part.kind, part.text, part.call_id, part.name)
    if current is not None:
        yield current
