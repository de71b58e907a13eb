"""Executors that resume from, save or start with a wrong state; their kernels don't compare stamps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from statemark.cache.digest import roll_stamp, stamp_seed
from statemark.engine.executor import U64
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sequence import Chunk, StepPlan
from statemark.errors import ConfigurationError
from statemark.models.qwen3_5 import Qwen3_5


class Blind(ModelExecutor):
    """Stamps are written and never compared: what the faults below need in order to reach an answer."""

    def allocate(self, num_pages: int, num_slots: int) -> None:
        super().allocate(num_pages, num_slots)
        self.arena.check_stamps = False


def resumed(plan: StepPlan) -> Iterator[Chunk]:
    """Chunks that go on from a mark."""
    return (c for c in plan.chunks if c.state_in >= 0 and c.state_in != c.state_out)


class _Saved(Blind):
    """Keeps a list of the states that are saved."""

    def allocate(self, num_pages: int, num_slots: int) -> None:
        super().allocate(num_pages, num_slots)
        self._saved: dict[int, int] = {}  # slot -> position of the mark in it

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:  # what this step writes is no saved state any more
            for slot in (chunk.state_out, *(slot for _, slot, _ in chunk.marks)):
                self._saved.pop(slot, None)
        self._tamper(plan)
        super().run(plan)
        for chunk in plan.chunks:
            self._saved.update((slot, chunk.start + offset) for offset, slot, _ in chunk.marks)

    def _tamper(self, plan: StepPlan) -> None:
        """Change the plan before it runs."""

    def release_slot(self, slot: int) -> None:
        self._saved.pop(slot, None)
        super().release_slot(slot)


class _Redirects(_Saved):
    """Resumes from another saved state than was asked for."""

    own = True  # take a state of the same prompt; False: of another request

    def _tamper(self, plan: StepPlan) -> None:
        for chunk in resumed(plan):
            found = [s for s, at in self._saved.items() if s != chunk.state_in and self._fits(chunk, s, at)]
            if found:
                chunk.state_in = min(found, key=lambda s: (abs(self._saved[s] - chunk.start // 2), s))

    def _fits(self, chunk: Chunk, slot: int, position: int) -> bool:
        lease, tokens = chunk.seq.lease, chunk.seq.tokens
        assert lease is not None
        mine = roll_stamp(stamp_seed(lease.chain.root), tokens[:position]) == int(self.arena.stamps[slot][0][1])
        return mine and position < chunk.start if self.own else not mine


class WrongPosition(_Redirects):
    """The state that is about half-way of the prompt, where one is saved."""


class OtherRequest(_Redirects):
    """A state that another prompt, or another client's salt, has left."""

    own = False


class OneTokenLate(Blind):
    """Marks are copied one token later where the chunk goes on, and their stamps say that nothing happened."""

    def allocate(self, num_pages: int, num_slots: int) -> None:
        super().allocate(num_pages, num_slots)
        self._claimed: dict[int, tuple[int, int]] = {}

    def run(self, plan: StepPlan) -> None:
        self._claimed.clear()
        asked = [list(chunk.marks) for chunk in plan.chunks]
        for chunk in plan.chunks:
            taken = {offset for offset, _, _ in chunk.marks}
            for i, (offset, slot, kind) in enumerate(chunk.marks):
                stamp = roll_stamp(chunk.stamp, chunk.seq.tokens[chunk.start : chunk.start + offset])
                self._claimed[slot] = (chunk.start + offset, stamp)
                if offset < chunk.count and offset + 1 not in taken:
                    chunk.marks[i] = (offset + 1, slot, kind)
        super().run(plan)
        for chunk, marks in zip(plan.chunks, asked, strict=True):  # the engine publishes under what it asked for
            chunk.marks = marks

    def stamps(self, slot: int) -> U64:
        real = super().stamps(slot)
        if slot not in self._claimed:
            return real
        return np.full_like(real, np.array(self._claimed[slot], dtype=np.uint64))


class StateReset(Blind):
    """The saved state is emptied before it is read."""

    def run(self, plan: StepPlan) -> None:
        for chunk in resumed(plan):
            self.arena.slot(chunk.state_in)[:] = 0
        super().run(plan)


class ConvDropped(Blind):
    """Of each layer's saved state the part behind the recurrent one, the convolution's window, is emptied."""

    def run(self, plan: StepPlan) -> None:
        for chunk in resumed(plan):
            c = self._model().config
            recurrent = c.linear_num_value_heads * c.linear_key_head_dim * c.linear_value_head_dim
            layers = self.arena.slot(chunk.state_in).reshape(self.model.spec.num_recurrent_layers, -1)
            layers[:, recurrent:] = 0
        super().run(plan)

    def _model(self) -> Qwen3_5:
        if not isinstance(self.model, Qwen3_5):
            raise ConfigurationError(f"conv-dropped knows no {self.model.spec.architecture}")
        return self.model


class PageHeadSkipped(Blind):
    """What a hit inside a page should copy is left as the page's last user wrote it."""

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            chunk.page_copy = None
        super().run(plan)


class SlotNotCleared(_Saved):
    """What another request has left is still in the slot of a fresh one, as it would be if nobody had zeroed it.

    Recurrent states add up, so adding the leftover after the first chunk is what starting from it comes to.
    """

    def run(self, plan: StepPlan) -> None:
        left = next(reversed(self._saved), None)
        before = None if left is None else np.array(self.arena.slot(left))
        super().run(plan)
        for chunk in plan.chunks:
            if before is not None and chunk.start == 0:
                self.arena.slot(chunk.state_out)[:] += before
