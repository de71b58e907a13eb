"""Token sequences by parts: enough identity to share prefixes exactly, without storing tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable
from typing import Protocol

Digest = Hashable


class Text(Protocol):
    """Names the prefixes of one request: equal digests mean equal tokens."""

    def digest(self, position: int) -> Digest: ...


class Prompt:
    """A sequence of named parts. Two prompts share a prefix exactly as far as their parts agree in name and order.

    `digest(p)` names the first p tokens: equal digests mean equal tokens.
    """

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Iterable[tuple[str, int]]) -> None:
        self._parts: list[tuple[str, int]] = []
        self._ends: list[int] = []
        for name, length in parts:
            self.append(name, length)

    def append(self, name: str, length: int) -> None:
        if length <= 0:
            return
        if self._parts and self._parts[-1][0] == name:
            self._parts[-1] = (name, self._parts[-1][1] + length)
            self._ends[-1] += length
            return
        self._parts.append((name, length))
        self._ends.append((self._ends[-1] if self._ends else 0) + length)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def digest(self, position: int) -> tuple[tuple[str, int], ...]:
        index = bisect_right(self._ends, position - 1) if position else 0
        if position == 0:
            return ()
        before = self._ends[index - 1] if index else 0
        return (*self._parts[:index], (self._parts[index][0], position - before))

    def copy(self) -> Prompt:
        return Prompt(self._parts)
