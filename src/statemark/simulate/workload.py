"""Requests as the simulator knows them: when they come, which prefixes they share, how much they answer.

A prompt is a row of spans. Two prompts are alike exactly as far as their spans are, so one integer for each span and
what lies before it is all the identity that caches need. Knows no file format and no server.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence

_SHIFT = 26  # a prompt has fewer tokens than 2**26
MAX_TOKENS = (1 << _SHIFT) - 1


class Request:
    """One request. `nodes[i]` names the prefix that ends inside span i, `ends[i]` is where that span ends.

    With `grain`, spans are that many tokens long (but for the last) and `ends` isn't needed. `answer` names the
    prefixes that go on into the request's own answer. `turns` are ends of messages, where they are known.
    """

    __slots__ = ("answer", "at", "ends", "grain", "nodes", "number", "output", "prompt", "session", "turns")

    def __init__(
        self,
        number: int,
        at: float,
        nodes: Sequence[int],
        prompt: int,
        output: int,
        answer: int,
        *,
        grain: int = 0,
        ends: Sequence[int] = (),
        session: str = "",
        turns: tuple[int, ...] = (),
    ) -> None:
        self.number = number
        self.at = at
        self.nodes = nodes
        self.prompt = prompt
        self.output = output
        self.answer = answer
        self.grain = grain
        self.ends = ends
        self.session = session
        self.turns = turns

    def span(self, position: int) -> int:
        """The index of the span that token number `position` (from 1) lies in."""
        return (position - 1) // self.grain if self.grain else bisect_left(self.ends, position)

    def digest(self, position: int) -> int:
        """Names the first `position` tokens of prompt and answer."""
        if position <= 0:
            return 0
        if position > self.prompt:
            return self.answer << _SHIFT | position
        return self.nodes[self.span(position)] << _SHIFT | position

    def name(self, position: int) -> int:
        """Names the span of token number `position` (from 1) and all that lies before it."""
        if position > self.prompt:
            return self.answer
        return self.nodes[(position - 1) // self.grain if self.grain else bisect_left(self.ends, position)]

    def end_of(self, span: int) -> int:
        if self.grain:
            return min((span + 1) * self.grain, self.prompt)
        return self.ends[span]


def common_prefix(one: Request, one_length: int, other: Request, other_length: int, low: int = 0) -> int:
    """How many tokens two texts (prompt, then answer, as far as given) begin with alike; `low` are known to be."""
    high = min(one_length, other_length)
    while low < high:
        middle = (low + high + 1) // 2
        if one.digest(middle) == other.digest(middle):
            low = middle
        else:
            high = middle - 1
    return low


class Names:
    """Gives every span after every prefix a number of its own."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._last = 0

    def fresh(self) -> int:
        """A prefix that nothing else shares."""
        self._last += 1
        return self._last

    def child(self, parent: int, at: int, name: Hashable) -> int:
        """The prefix that goes on from `parent`, which ends at token `at`, with the span `name`."""
        key = (parent, at, name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.fresh()
        return found

    def spans(self, parts: Iterable[tuple[Hashable, int]]) -> tuple[list[int], list[int]]:
        """(nodes, ends) of a row of named spans. Equal neighbours count as one span."""
        nodes: list[int] = []
        ends: list[int] = []
        before, at, last = 0, 0, None
        for name, length in parts:
            if nodes and name == last:
                ends[-1] += length
            else:
                before = self.child(before, at, name)
                nodes.append(before)
                ends.append(at + length)
                last = name
            at = ends[-1]
        return nodes, ends
