"""The planted fault: an executor that goes on from a state saved at another position of the same prompt.

It is the fault that caches of recurrent state have in practice. Must never be used outside of the tour and its tests.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sequence import StepPlan
from statemark.models import Model
from statemark.models.backend import RuntimeLike


@dataclass(frozen=True)
class Planted:
    """A sequence went on at `position` with the state after `taken` tokens."""

    position: int
    taken: int


class WrongPosition(ModelExecutor):
    """Once, takes the state of an earlier mark, about half-way, instead of the one asked for. Stamps are compared."""

    most = 1

    def __init__(self, model: Model, runtime: RuntimeLike) -> None:
        super().__init__(model, runtime)
        self.planted: list[Planted] = []
        self._saved: dict[int, int] = {}  # slot -> position of the mark in it

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            resumes = chunk.state_in >= 0 and chunk.state_in != chunk.state_out
            if resumes and len(self.planted) < self.most:
                earlier = [(p, slot) for slot, p in self._saved.items() if p < chunk.start]
                if earlier:
                    taken, slot = min(earlier, key=lambda found: (abs(found[0] - chunk.start // 2), found))
                    self.planted.append(Planted(chunk.start, taken))
                    chunk.state_in = slot
            self._saved.pop(chunk.state_out, None)
        super().run(plan)
        for chunk in plan.chunks:
            self._saved.update((slot, chunk.start + offset) for offset, slot, _ in chunk.marks)


class UncheckedWrongPosition(WrongPosition):
    """The same at every resume, where nobody compares stamps: a cache without them."""

    most = sys.maxsize

    def allocate(self, num_pages: int, num_slots: int) -> None:
        super().allocate(num_pages, num_slots)
        self.arena.check_stamps = False


@contextmanager
def complaints() -> Iterator[list[str]]:
    """What the engine logs meanwhile, in a list instead of on the terminal: here the complaint is the show."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger, listener = logging.getLogger("statemark"), Listener()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
