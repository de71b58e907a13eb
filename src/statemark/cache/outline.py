"""The marks as a picture shows them: where they are and what they go on from. No token and no text leaves here."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from statemark.cache.index import Mark, PrefixIndex


@dataclass(frozen=True)
class MarkOutline:
    """`parent` is the place in the same list of the mark before it on its path; -1 where none is cached."""

    position: int  # tokens
    kind: str
    hits: int
    in_use: bool
    superseded: bool
    parent: int


def outline(index: PrefixIndex, limit: int) -> list[MarkOutline]:
    """At most `limit` marks: those used last, and what they go on from, parents before children, paths together.

    A mark is left out with all that goes on from it where its ancestors alone would pass the limit.
    """
    chosen: dict[Mark, None] = {}
    for mark in heapq.nlargest(limit, index.marks(), key=lambda mark: mark.clock):
        path: list[Mark] = []
        above: Mark | None = mark
        while above is not None and above not in chosen:
            path.append(above)
            above = above.parent
        if len(chosen) + len(path) <= limit:
            chosen.update(dict.fromkeys(reversed(path)))
    places: dict[Mark, int] = {}
    found: list[MarkOutline] = []
    stack = sorted((mark for mark in chosen if mark.parent is None), key=_order, reverse=True)
    while stack:
        mark = stack.pop()
        places[mark] = len(found)
        found.append(
            MarkOutline(
                position=mark.position,
                kind=mark.kind,
                hits=mark.hits,
                in_use=mark.pins > 0,
                superseded=mark.head.superseded,
                parent=-1 if mark.parent is None else places[mark.parent],
            )
        )
        stack += sorted((child for child in mark.children if child in chosen), key=_order, reverse=True)
    return found


def _order(mark: Mark) -> tuple[int, bytes]:
    """The same picture for the same cache, whatever the order in which it was filled."""
    return mark.position, mark.digest
