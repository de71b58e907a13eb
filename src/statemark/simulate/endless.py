"""Statemark's cache where nothing is ever evicted: all that is left of it is where marks lie.

A tree of texts: an edge is a stretch that all requests below it have in common, with the positions of the marks inside.
Every edge ends at a mark or where texts part, so what the tree holds is what the cache's pages would. Plans marks with
the cache's own planner; knows no bytes and no time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from statemark.simulate.workload import Request, common_prefix


class Edge:
    """From the edge before it up to token `end` of `text`. `marks`: positions, ascending. `children`: by the name of
    the token that comes next."""

    __slots__ = ("children", "end", "marks", "text")

    def __init__(self, text: Request, end: int, marks: array[int]) -> None:
        self.text = text
        self.end = end
        self.marks = marks
        self.children: dict[int, Edge] | None = None


class Endless:
    """Marks of requests, found by what their texts share."""

    def __init__(self) -> None:
        self._roots: dict[int, Edge] = {}

    def lookup(self, request: Request, known: int) -> tuple[int, int]:
        """(the deepest mark that leaves one of `known` tokens to compute, tokens that a cached text begins with)."""
        path: list[Edge] = []
        shared = 0
        children: dict[int, Edge] | None = self._roots
        while children and shared < known:
            edge = children.get(request.name(shared + 1))
            if edge is None:
                break
            path.append(edge)
            end = edge.end
            if end > known or request.digest(end) != edge.text.digest(end):
                shared = common_prefix(request, known, edge.text, end, shared)
                break
            shared, children = end, edge.children
        limit = min(shared, known - 1)
        for edge in reversed(path):
            index = bisect_right(edge.marks, limit)
            if index:
                return edge.marks[index - 1], shared
        return 0, shared

    def publish(self, request: Request, positions: list[int]) -> None:
        """Marks at `positions`, ascending, of the request's prompt and answer."""
        above: Edge | None = None
        at = 0
        children: dict[int, Edge] | None = self._roots
        for position in positions:
            while True:
                name = request.name(at + 1)
                edge = children.get(name) if children else None
                if edge is None:
                    if above is not None and above.children is None:  # nobody parts from it: it grows
                        above.text, above.end = request, position
                        above.marks.append(position)
                    else:
                        edge = Edge(request, position, array("i", (position,)))
                        if children is None:
                            assert above is not None
                            children = above.children = {}
                        children[name] = above = edge
                    at, children = position, above.children
                    break
                end = edge.end
                if position <= end and request.digest(position) == edge.text.digest(position):
                    index = bisect_left(edge.marks, position)
                    if index == len(edge.marks) or edge.marks[index] != position:
                        edge.marks.insert(index, position)
                    if position == end:
                        above, at, children = edge, end, edge.children
                    break
                if position < end or request.digest(end) != edge.text.digest(end):
                    _split(edge, common_prefix(request, position, edge.text, end, at))
                above, at, children = edge, edge.end, edge.children


def _split(edge: Edge, at: int) -> None:
    """Make the edge end at `at`, and what was behind it one below it."""
    index = bisect_right(edge.marks, at)
    below = Edge(edge.text, edge.end, edge.marks[index:])
    below.children = edge.children
    edge.end, edge.marks, edge.children = at, edge.marks[:index], {edge.text.name(at + 1): below}
