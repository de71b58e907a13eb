"""Text that arrives in pieces, for parsers written as generators: they yield where they need more. Knows no format.

A parser decides by characters alone, never by where a piece ends; what it writes may come in other pieces, not with
another sum. Then a stream parses to what the whole text parses to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A parser that ends with a T; `yield` means that it needs more text."""


class MalformedError(Exception):
    """The text is not of the format that it began as. Always caught: the text then goes to the reader as it is."""


class Source:
    """The text so far. `at` is where parsing is; nothing before the last `cut` is kept."""

    def __init__(self) -> None:
        self.data = ""
        self.at = 0
        self.forgotten = 0  # characters before `data`
        self.closed = False

    def push(self, text: str) -> None:
        self.data += text

    def close(self) -> None:
        """No text follows."""
        self.closed = True

    def cut(self) -> None:
        """Forget what was parsed."""
        self.forgotten += self.at
        self.data, self.at = self.data[self.at :], 0

    def available(self) -> Steps[bool]:
        """Wait for a character; False at the end of the text."""
        while self.at >= len(self.data):
            if self.closed:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, or "" at the end."""
        return self.data[self.at] if (yield from self.available()) else ""

    def next(self) -> Steps[str]:
        """The next character, taken; MalformedError at the end."""
        character = yield from self.peek()
        if not character:
            raise MalformedError("the text ends here")
        self.at += 1
        return character

    def space(self) -> Steps[None]:
        """Skip white space as JSON has it."""
        while (yield from self.peek()) in (" ", "\n", "\r", "\t"):
            self.at += 1

    def starts(self, word: str, offset: int = 0) -> Steps[bool]:
        """Whether `word` comes `offset` characters from here. Waits only as long as it still may."""
        while True:
            begin = self.at + offset
            there = self.data[begin : begin + len(word)]
            if len(there) == len(word) or not word.startswith(there) or self.closed:
                return there == word
            yield

    def accept(self, word: str) -> Steps[bool]:
        """Take `word` if it comes next."""
        if not (yield from self.starts(word)):
            return False
        self.at += len(word)
        return True

    def expect(self, *words: str) -> Steps[str]:
        """Take the one of `words` that comes next; MalformedError if none does."""
        for word in words:
            if (yield from self.accept(word)):
                return word
        raise MalformedError(f"expected {' or '.join(words)}")

    def until(self, end: str, *, limit: int) -> Steps[str]:
        """Text up to `end`, which is taken too; MalformedError after `limit` characters without it."""
        while True:
            found = self.data.find(end, self.at, self.at + limit + len(end))
            if found >= 0:
                text, self.at = self.data[self.at : found], found + len(end)
                return text
            if self.closed or len(self.data) - self.at >= limit + len(end):
                raise MalformedError(f"no {end} within {limit} characters")
            yield


def begun(text: str, words: Iterable[str]) -> int:
    """Characters at the end of `text` that may be the beginning of one of `words`."""
    longest = 0
    for word in words:
        for length in range(min(len(text), len(word) - 1), longest, -1):
            if text.endswith(word[:length]):
                longest = length
                break
    return longest
