"""The planted fault: an executor that goes on from a state saved at another position of the same prompt.

It is the fault that caches of recurrent state have in practice. Must never be used outside of the tour and its tests.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sequence import Chunk, StepPlan
from statemark.models import Model
from statemark.models.backend import RuntimeLike


@dataclass(frozen=True)
class Planted:
    """A sequence went on at `position` with the state after `taken` tokens."""

    position: int
    taken: int


class WrongPosition(ModelExecutor):
    """While `times` lasts, takes the state of an earlier mark, about half-way, instead of the one asked for."""

    def __init__(self, model: Model, runtime: RuntimeLike) -> None:
        super().__init__(model, runtime)
        self.times = 0
        self.planted: list[Planted] = []
        self._saved: dict[int, int] = {}  # slot -> position of the mark in it

    def plant(self, times: int, *, check_stamps: bool) -> None:
        self.times = times
        self.arena.check_stamps = check_stamps

    def run(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if self.times and chunk.state_in >= 0 and chunk.state_in != chunk.state_out:
                self._misplace(chunk)
            self._saved.pop(chunk.state_out, None)
        super().run(plan)
        for chunk in plan.chunks:
            self._saved.update((slot, chunk.start + offset) for offset, slot, _ in chunk.marks)

    def _misplace(self, chunk: Chunk) -> None:
        earlier = [(position, slot) for slot, position in self._saved.items() if position < chunk.start]
        if earlier:
            taken, slot = min(earlier, key=lambda found: (abs(found[0] - chunk.start // 2), found))
            chunk.state_in = slot
            self.times -= 1
            self.planted.append(Planted(chunk.start, taken))


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
