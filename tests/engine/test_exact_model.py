"""Contract 1 on real kernels and a real (tiny, random) model, on every instruction set that this machine can run."""

import os
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from statemark import kernels
from statemark.engine.core import Engine
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sampler import Sampler
from statemark.models import DTYPES, load_model
from statemark.models.make_model import write_model
from statemark.models.shapes import Shape, config_json
from tests.engine import harness
from tests.engine.schedules import busy, mismatches, schedules

SHAPE = Shape(
    layers=4, hidden=64, intermediate=96, heads=4, kv_heads=2, key_heads=2, value_heads=4, tied=True, vocab=320,
    head_dim=32, recurrent_dim=16, positions=2048,
)  # fmt: skip
EXAMPLES = int(os.environ.get("STATEMARK_EXAMPLES", "25"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny"
    write_model(path, config_json(SHAPE, "bfloat16"), seed=3, dtype="bfloat16")
    return path


class World:
    """One model on one instruction set, loaded once for each number of threads, with its oracle."""

    def __init__(self, folder, isa, precision):
        kind = "dtype" if precision in DTYPES else "quantization"
        self.models = {}
        for threads in (1, 2):
            runtime = kernels.Runtime(threads=threads, isa=isa)
            self.models[threads] = (load_model(folder, runtime=runtime, **{kind: precision}), runtime)
        self.spec = self.models[1][0].spec
        self.oracle = lru_cache(maxsize=4096)(self._oracle)

    def engine(self, threads=1, executor=ModelExecutor, **options):
        model, runtime = self.models[threads]
        return Engine(executor(model, runtime), Sampler(runtime), **options)

    def _oracle(self, request):
        engine = self.engine(
            cache_bytes=64 << 20, max_num_batched_tokens=1, max_num_seqs=1, enable_prefix_caching=False,
            max_model_len=1024,
        )  # fmt: skip
        return harness.one(engine, request)

    def check(self, schedule, executor=ModelExecutor):
        def make(threads, **options):
            return self.engine(threads, executor, **options)

        return mismatches(schedule, make, self.spec.page_bytes, self.spec.slot_bytes, self.oracle)


PRECISIONS = ("bfloat16", "float32", "int8", "int4")


@pytest.fixture(scope="module", params=[(i, p) for i in kernels.available_isas() for p in PRECISIONS])
def world(request, folder):
    return World(folder, *request.param)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=schedules())
def test_any_schedule_equals_the_cold_run(world, schedule):
    assert world.check(schedule) == []


def test_a_long_prompt_in_any_chunks_equals_the_cold_run(world):
    """Past the sizes at which kernels switch to blocks, tiles and several strips."""
    prompt = [(i * i + 3 * i) % 128 for i in range(500)]
    request = harness.request("long", prompt, turns=[100, 333], max_tokens=3)
    right = world.oracle(request).digest()
    for threads, budget in ((1, 512), (2, 512), (2, 97), (1, 64)):
        engine = world.engine(
            threads, cache_bytes=64 << 20, max_num_batched_tokens=budget, max_num_seqs=2, max_model_len=1024
        )
        assert harness.one(engine, request).digest() == right
        again = harness.one(engine, harness.request("again", prompt, max_tokens=3))
        assert (again.cached, again.digest()) == (499, right)
        sibling = harness.request("sibling", prompt[:400] + prompt[:9], max_tokens=2)
        got = harness.one(engine, sibling)
        assert (got.cached, got.digest()) == (333, world.oracle(sibling).digest())


class Blind(ModelExecutor):
    """Kernels told not to check stamps, so that only answers can tell."""

    def __init__(self, *args):
        super().__init__(*args)
        self.damaged = 0

    def allocate(self, num_pages, num_slots):
        super().allocate(num_pages, num_slots)
        self.arena.check_stamps = False


class DamagesMarks(Blind):
    """Every mark that a sequence resumes from is damaged just before it is read."""

    def run(self, plan):
        for chunk in plan.chunks:
            if chunk.state_in >= 0 and chunk.state_in != chunk.state_out:
                self.damage(chunk.state_in)
                self.damaged += 1
        super().run(plan)


class ResetsState(DamagesMarks):
    def damage(self, slot):
        self.arena.slot(slot)[:] = 0


class DropsSideRows(DamagesMarks):
    """The convolution's last inputs don't travel with the state."""

    def damage(self, slot):
        per_layer = self.model.spec.slot_floats // self.model.spec.num_recurrent_layers
        conv = 3 * (2 * SHAPE.key_heads + SHAPE.value_heads) * SHAPE.recurrent_dim
        state = self.arena.slot(slot).reshape(-1, per_layer)
        recurrent = SHAPE.value_heads * SHAPE.recurrent_dim**2
        state[:, recurrent : recurrent + conv] = 0


class DropsWaitingTokens(DamagesMarks):
    """Tokens that have not entered the state yet don't travel with it."""

    def damage(self, slot):
        per_layer = self.model.spec.slot_floats // self.model.spec.num_recurrent_layers
        conv = 3 * (2 * SHAPE.key_heads + SHAPE.value_heads) * SHAPE.recurrent_dim
        recurrent = SHAPE.value_heads * SHAPE.recurrent_dim**2
        self.arena.slot(slot).reshape(-1, per_layer)[:, recurrent + conv :] = 0


class OtherState(DamagesMarks):
    def damage(self, slot):
        self.arena.slot(slot)[:] = self.arena.slot((slot + 1) % 8)


class SkipsPageHead(Blind):
    def run(self, plan):
        for chunk in plan.chunks:
            self.damaged += chunk.page_copy is not None
            chunk.page_copy = None
        super().run(plan)


class MixesMates(Blind):
    def logits(self, rows):
        self.damaged += len(rows) > 1
        return super().logits(rows) * np.float32(1 + 1e-6 * (len(rows) - 1))


@pytest.mark.parametrize(
    "fault", [ResetsState, DropsSideRows, DropsWaitingTokens, OtherState, SkipsPageHead, MixesMates]
)
def test_the_property_notices(world, fault):
    made = []

    def executor(*args):
        made.append(fault(*args))
        return made[-1]

    assert world.check(busy()) == [], "without the fault the same schedule is exact"
    wrong = world.check(busy(), executor)
    assert made[0].damaged, "the fault never happened: the schedule proves nothing"
    assert wrong
    assert not any("None instead" in w for w in wrong), "it crashed; it was to answer wrongly"


def test_with_stamps_checked_a_foreign_state_is_dropped_and_every_answer_is_right(world):
    class Restores(ModelExecutor):
        done = False

        def run(self, plan):
            for chunk in plan.chunks:
                if not Restores.done and chunk.state_in >= 0 and chunk.state_in != chunk.state_out:
                    self.arena.copy_slot((chunk.state_in + 1) % 8, chunk.state_in)
                    Restores.done = True
            super().run(plan)

    seen = {}
    engine = world.engine(1, Restores, cache_bytes=64 << 20, max_model_len=1024)
    schedule = busy()
    for i, arrival in enumerate(schedule.arrivals):
        engine.add_request(arrival.request(f"r{i}"))
        harness.drain(engine, seen)
    assert Restores.done
    assert engine.stats()["marks_discarded"] == 1
    for i, arrival in enumerate(schedule.arrivals):
        assert seen[(f"r{i}", 0)].digest() == world.oracle(arrival.request(f"r{i}")).digest()
