"""Contract 1 on the toy executor: many schedules, cheaply; and the faults that the property must notice."""

from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings

from tests.engine import harness
from tests.engine.schedules import busy, mismatches, schedules
from tests.toy import ToyExecutor


@lru_cache(maxsize=4096)
def oracle(request):
    return harness.cold(request, ToyExecutor(vocab_size=100))


def check(schedule, executor=ToyExecutor):
    def make(threads, **options):
        return harness.engine(executor(vocab_size=100), **options)

    return mismatches(schedule, make, 64, 256, oracle)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_any_schedule_equals_the_cold_run(schedule):
    assert check(schedule) == []


class Blind(ToyExecutor):
    """Kernels without stamp checks that forge the stamps of what they damage, so that only answers can tell."""

    def __init__(self, **options):
        super().__init__(**options)
        self.check_stamps = False
        self.damaged = 0

    def resumes(self, plan):
        return [c for c in plan.chunks if c.state_in >= 0 and c.state_in != c.state_out]


class ResetsState(Blind):
    def run(self, plan):
        for c in self.resumes(plan):
            self.states[c.state_in] = 0
            self.damaged += 1
        super().run(plan)


class OtherState(Blind):
    def run(self, plan):
        for c in self.resumes(plan):
            self.states[c.state_in] = self.states[(c.state_in + 1) % 8]
            self.damaged += 1
        super().run(plan)


class OneTokenLate(Blind):
    def _write(self, slot, state, count, stamp):
        late = getattr(self, "previous", state)
        self.damaged += late != state
        super()._write(slot, late if slot not in self.running else state, count, stamp)
        self.previous = state

    def run(self, plan):
        self.running = {c.state_out for c in plan.chunks}
        super().run(plan)


class SkipsPageHead(Blind):
    def run(self, plan):
        for c in plan.chunks:
            self.damaged += c.page_copy is not None
            c.page_copy = None
        super().run(plan)


class ReusesSlotAsItIs(Blind):
    def _run_chunk(self, chunk):
        if chunk.state_in < 0:
            chunk.state_in = chunk.state_out
            self.damaged += 1
        super()._run_chunk(chunk)


class MixesMates(Blind):
    def logits(self, rows):
        out = super().logits(rows)
        self.damaged += len(rows) > 1
        return out + np.float32(1e-3 * (len(rows) - 1)) * np.arange(out.shape[1], dtype=np.float32)


@pytest.mark.parametrize("fault", [ResetsState, OtherState, OneTokenLate, SkipsPageHead, ReusesSlotAsItIs, MixesMates])
def test_the_property_notices(fault):
    made = []

    def executor(**options):
        made.append(fault(**options))
        return made[-1]

    assert check(busy()) == [], "without the fault the same schedule is exact"
    wrong = check(busy(), executor)
    assert made[0].damaged, "the fault never happened: the schedule proves nothing"
    assert wrong
