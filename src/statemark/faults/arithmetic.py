"""Executors whose numbers depend on batch mates, on where chunks end or on having been saved: small shifts."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from statemark.engine.executor import F32
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sequence import StepPlan

_MIX = np.float32(1e-3)


class MixesMates(ModelExecutor):
    """Every row's logits take in a thousandth of the other rows' mean."""

    def logits(self, rows: Seq[int]) -> F32:
        logits = super().logits(rows)
        if len(rows) > 1:
            others = (logits.sum(axis=0, keepdims=True) - logits) / np.float32(len(rows) - 1)
            logits = logits + _MIX * others
        return logits


def rounded(values: F32) -> F32:
    """float32 values at the precision of bfloat16: the lower half of the bits, rounded away."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


class ChunkRounding(ModelExecutor):
    """The running state is rounded after every chunk of more than one token."""

    def run(self, plan: StepPlan) -> None:
        super().run(plan)
        for chunk in plan.chunks:
            if chunk.count > 1:
                state = self.arena.slot(chunk.state_out)
                state[:] = rounded(np.array(state))


class SavedRounding(ModelExecutor):
    """Marks are rounded; running states are not."""

    def run(self, plan: StepPlan) -> None:
        super().run(plan)
        for chunk in plan.chunks:
            for _, slot, _ in chunk.marks:
                state = self.arena.slot(slot)
                state[:] = rounded(np.array(state))
