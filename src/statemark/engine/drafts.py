"""Drafts: what probably comes next, guessed from what the prompt and the answer already hold (prompt lookup).

A step that computes a few tokens more costs hardly more than one: both read all weights once. The step's own logits say
how many drafts were right, so drafts decide how many tokens a step gives and never which: contract 1 holds with them as
without. Agents repeat themselves (files, names, JSON), which is where this pays.

Pure functions of a sequence's own tokens and of how its earlier drafts fared; no clock, nobody else's text.
"""

from __future__ import annotations

import numpy as np

from statemark.cache.digest import Tokens

MOST_DRAFTS = 16  # of one sequence in a step
_LEAST_MATCH = 3  # tokens before a guess that must have been seen in this order before
_MOST_MATCH = 16
_LONGEST_PAUSE = 32  # steps without a draft after drafts that failed


def look_up(tokens: Tokens, most: int) -> Tokens:
    """At most `most` tokens that followed the last time that `tokens` int32[n] went through its present end.

    The longest match decides, and among equals the latest. Where the match overlaps the end, what is repeated goes on
    being repeated.
    """
    if not most:
        return tokens[:0]
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])
    matched = 1
    while len(ends) and matched < _MOST_MATCH:
        longer = ends[ends >= matched]
        longer = longer[tokens[longer - matched] == tokens[last - matched]]
        if not len(longer):
            break
        ends, matched = longer, matched + 1
    if not len(ends) or matched < _LEAST_MATCH:
        return tokens[:0]
    first = int(ends[-1]) + 1
    return tokens[first + np.arange(most) % (last + 1 - first)]


class DraftPace:
    """How many tokens to draft for one sequence: twice as many after success, fewer after failure, none for a while."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._wanted = min(2, most)
        self._failures = 0
        self._pause = 0

    def wanted(self) -> int:
        """Drafts for the next step. Asked once a step: a pause gets shorter by it."""
        if self._pause:
            self._pause -= 1
            return 0
        return self._wanted

    def learn(self, drafted: int, accepted: int) -> None:
        if accepted == drafted:
            self._wanted = min(self._most, max(2 * drafted, 1))
        else:
            self._wanted = max(1, accepted)
        self._failures = 0 if accepted else self._failures + 1
        if self._failures > 1:
            self._pause = min(_LONGEST_PAUSE, 2**self._failures)
