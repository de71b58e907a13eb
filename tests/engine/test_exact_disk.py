"""Contract 1 through the disk, on real kernels and every instruction set: resumed from files equals computed cold.

And the proof that the comparison can fail: files with right checksums and wrong content are let through on purpose.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statemark import kernels
from statemark.cache.disk import Always
from statemark.engine.disk import DiskOptions
from tests.cache.disk.forging import forge, load, swap_states
from tests.engine import harness
from tests.engine.schedules import BLOCKS
from tests.engine.test_exact_model import EXAMPLES, World, folder  # noqa: F401 - a fixture

PROMPT = sum((BLOCKS[i] for i in (2, 5, 1, 4, 5)), ())


@pytest.fixture(scope="module", params=[(i, d) for i in kernels.available_isas() for d in ("bfloat16", "float32")])
def world(request, folder):  # noqa: F811
    return World(folder, *request.param)


def opened(world, path, threads=1, **options):
    disk = DiskOptions(path=path, limit=1 << 30, pace=Always(), background=False)
    return world.engine(threads, cache_bytes=64 << 20, max_model_len=1024, disk=disk, **options)


def ask(world, engine, prompt=PROMPT, **options):
    request = harness.request("r", prompt, **options)
    answer = harness.one(engine, request)
    assert (answer.finish, answer.digest()) == ("length", world.oracle(request).digest())
    engine.check_integrity()
    return answer


def filled(world, path, prompt=PROMPT, **options):
    engine = opened(world, path)
    ask(world, engine, prompt, **options)
    engine.close(60)
    return len(list(path.glob("*.mark")))


@settings(
    max_examples=max(5, EXAMPLES // 3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    prompts=st.lists(
        st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4).map(lambda b: sum(b, ())), min_size=1, max_size=4
    ),
    turn=st.integers(1, 60),
    threads=st.integers(1, 2),
    budget=st.sampled_from([17, 64, 512]),
)
def test_every_prompt_in_its_own_process_equals_the_cold_run(world, prompts, turn, threads, budget):
    """Each request is asked by an engine that knows nothing but the files of those before it."""
    path = Path(tempfile.mkdtemp())
    for prompt in [*prompts, *((*p, turn, 1) for p in prompts), *prompts]:
        engine = opened(world, path, threads, max_num_batched_tokens=budget)
        ask(world, engine, prompt, turns=[turn] if turn < len(prompt) else [], max_tokens=3)
        engine.close(60)
    engine = opened(world, path)
    assert ask(world, engine, prompts[0], max_tokens=3).cached == len(prompts[0]) - 1
    shutil.rmtree(path)


def test_a_long_prefix_from_disk_in_one_go_and_in_its_middle(world, tmp_path):
    prompt = tuple((i * i + 3 * i) % 128 for i in range(500))
    assert filled(world, tmp_path, prompt, turns=[100, 333]) >= 3
    assert ask(world, opened(world, tmp_path), prompt).cached == 499
    assert ask(world, opened(world, tmp_path, 2), prompt[:400] + prompt[:9]).cached == 333


def answer_of(world, path):
    engine = opened(world, path)
    request = harness.request("r", PROMPT)
    answer = harness.one(engine, request)
    return answer, answer.digest() == world.oracle(request).digest(), engine


def zeroed_state(path):
    record, parts = load(path)
    forge(path, record, [*parts[:-1], bytes(len(parts[-1]))])


def one_flipped_bit_of_a_page(path):
    record, parts = load(path)
    page = bytearray(parts[0])
    page[1] ^= 0x40
    forge(path, record, [bytes(page), *parts[1:]])


def pages_one_later(path):
    record, parts = load(path)
    forge(path, record, [parts[-2], *parts[:-2], parts[-1]])


@pytest.mark.parametrize("fault", [zeroed_state, one_flipped_bit_of_a_page, pages_one_later])
def test_the_comparison_notices_content_that_checksums_were_made_to_fit(world, tmp_path, fault):
    """If any of these went unnoticed, equal digests above would prove nothing about the bytes."""
    filled(world, tmp_path)
    for path in tmp_path.glob("*.mark"):
        fault(path)
    answer, right, _ = answer_of(world, tmp_path)
    assert answer.cached == len(PROMPT) - 1
    assert not right


def test_another_positions_state_is_refused_and_would_have_been_wrong(world, tmp_path):
    filled(world, tmp_path, turns=[40])
    kept = shutil.copytree(tmp_path, tmp_path / "kept")
    swap_states(tmp_path)
    answer, right, engine = answer_of(world, tmp_path)
    assert right
    assert answer.cached == 0
    assert engine.stats()["disk_stamp"] >= 1
    swap_states(kept, stamps=False)  # the same, with stamps that were made to fit
    answer, right, _ = answer_of(world, kept)
    assert answer.cached > 0
    assert not right


def test_another_model_precision_or_instruction_set_finds_nothing(world, tmp_path, folder):  # noqa: F811
    count = filled(world, tmp_path)
    for isa in kernels.available_isas():
        for dtype in ("bfloat16", "float32"):
            other = World(folder, isa, dtype)
            if other.spec.fingerprint == world.spec.fingerprint:
                continue
            engine = opened(other, tmp_path)
            assert ask(other, engine).cached == 0
            assert engine.stats()["disk_foreign"] == count


def test_a_foreign_file_under_the_right_name_is_refused(world, tmp_path):
    """As if two models' digests met: the header says whose it is."""
    filled(world, tmp_path)
    for path in tmp_path.glob("*.mark"):
        record, parts = load(path)
        said = type(record.description)(
            **{f: getattr(record.description, f) for f in record.description.__struct_fields__} | {"fingerprint": "x"}
        )
        forge(path, replace(record, description=said), parts)
    answer, right, engine = answer_of(world, tmp_path)
    assert (right, answer.cached) == (True, 0)
    assert engine.stats()["disk_foreign"] >= 1


def test_the_whole_slot_travels(world, tmp_path):
    """Recurrent and convolution states of all layers: a slot read back is the slot that was written, byte for byte."""
    first = opened(world, tmp_path)
    ask(world, first)
    first.close(60)
    second = opened(world, tmp_path)
    ask(world, second)
    mine = {m.digest: m for m in first.cache.index.marks()}
    found = [(mine[m.digest], m) for m in second.cache.index.marks() if m.digest in mine]
    assert found
    for a, b in found:
        assert bytes(first.executor.slot_memory(a.slot)) == bytes(second.executor.slot_memory(b.slot))
        assert np.array_equal(first.executor.stamps(a.slot), second.executor.stamps(b.slot))
