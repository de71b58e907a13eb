"""Requests on the cache alone, as the replay of traces runs them: lookup, plan, marks, end."""

from __future__ import annotations

import numpy as np

from statemark.simulate.replay import Replay
from statemark.simulate.traces import TraceRequest

PAGE, SLOT = 1 << 10, 96 << 10  # in the proportion of a real model: a mark costs as much as 1,536 tokens


def text(n, start=0):
    """`n` token ids that begin nowhere else."""
    return np.arange(start, start + n, dtype=np.int32) + np.int32(1)


def join(*parts):
    return np.concatenate(parts)


class Asking(Replay):
    """`ask` gives the tokens that were reused; the cache is checked after each."""

    def __init__(self, *, tokens=1 << 20, marks=10_000, policy="value"):
        super().__init__(tokens // 16 * PAGE + marks * SLOT, page_bytes=PAGE, slot_bytes=SLOT, policy=policy)

    def ask(self, tokens, *, turns=(), out=1, salt="s", check=True):
        before = self.result.computed
        empty = np.empty(0, dtype=np.int32)
        self.run(TraceRequest(salt, "", 0.0, empty, tokens, out, tuple(turns)))
        assert not self.cache.counters["too_large"], "the test's cache is too small for its prompt"
        if check:
            self.cache.check_integrity([])
        return len(tokens) - (self.result.computed - before)

    def kinds(self):
        return sorted((mark.position, mark.kind) for mark in self.cache.index.marks())


def few_marks(marks, policy="value"):
    """Room for `marks` marks beside the running state, and pages for nothing."""
    asking = Asking(policy=policy)
    slot = 1 << 40
    Replay.__init__(asking, (marks + 2) * slot - 1, page_bytes=1, slot_bytes=slot, policy=policy)
    return asking
