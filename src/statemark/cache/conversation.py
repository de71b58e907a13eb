"""Which conversation a request goes on with, so that the marks which only its last prompt needed may go.

Owns that guess alone: it decides what is evicted first, never what is reused. Knows no bytes and no slots.
"""

from __future__ import annotations

from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.index import Head, Lookup, Mark, PrefixIndex
from statemark.cache.value import EDGE, HEADS


def goes_on(index: PrefixIndex, found: Lookup, mark: Mark, prompt_tokens: int) -> tuple[Head, Head | None]:
    """For a request that resumes at `mark`: (where its own marks are listed, the request that it supersedes)."""
    if mark.kind == "preempt":
        return mark.head, None
    if mark.position == prompt_tokens - 1:  # asked again: this prompt's end stays the last one
        mark.hits += 1
        return Head(prompt_tokens), None
    near = mark.kind in HEADS or (mark.kind != "system" and mark.position >= mark.head.prompt_tokens - EDGE)
    if near and not mark.head.superseded:
        if mark.kind == "junction" and found.shared == mark.position:
            mark.hits += 1  # one more request that parts just where others did
        return Head(prompt_tokens), mark.head
    left = left_behind(index, found)
    if left is None:
        mark.hits += 1  # the conversation went on from here before: this is a branch
    return Head(prompt_tokens), left


def left_behind(index: PrefixIndex, found: Lookup) -> Head | None:
    """The latest prompt whose last few tokens this one replaces, where no mark lies between to go on from.

    Without it the ends of such prompts would stay pinned, and a small cache would fill up with them.
    """
    if not found.path:
        return None
    ends = [
        mark
        for mark in index.marks_below(found.path[-1], EDGE // PAGE_TOKENS + 1)
        if mark.kind in HEADS and not mark.head.superseded
        if mark.head.prompt_tokens - EDGE <= found.shared < mark.position
    ]
    return max(ends, key=lambda mark: mark.clock).head if ends else None
