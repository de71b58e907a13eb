"""The public reports of kind offload and E6, by their names, on files.

Not here: E7's ratio of two pools (one budget holds pages and marks), O5's transfer between prefill and decode machines,
O6's events for routers. O3 is in `tests/engine/test_core.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from statemark.cache.disk.pace import Always
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions
from tests.engine import harness
from tests.toy import ToyExecutor

SHARED = [i * 7 % 41 for i in range(90)]


def opened(path: Path, **options: int) -> Engine:
    disk = DiskOptions(path=path, limit=1 << 20, pace=Always(), background=False)
    return harness.engine(ToyExecutor(), disk=disk, **options)


def test_o2_many_prompts_that_share_a_prefix_from_files_are_all_right_and_do_come_from_there(tmp_path: Path) -> None:
    first = opened(tmp_path)
    for i in range(3):
        harness.one(first, harness.request(f"w{i}", [*SHARED, i, i, i]))
    first.close()
    for i in range(12):
        engine = opened(tmp_path)
        asked = harness.request(f"r{i}", [*SHARED, *[30 + i % 7] * (i + 1)])
        answer = harness.one(engine, asked)
        assert answer.digest() == harness.cold(asked).digest()
        assert engine.stats()["disk_hits"] == 1, "a run without hits shows nothing"
        assert answer.cached == len(SHARED)


def test_o4_all_that_belongs_to_a_state_moves_with_it(tmp_path: Path) -> None:
    """Every byte of the slot, the stamps, and of the pages up to the position."""
    first = opened(tmp_path)
    asked = harness.request("a", SHARED, max_tokens=1)
    harness.one(first, asked)
    first.disk.spill.writer.work()
    first.disk.spill.poll()
    before = {mark.digest: mark for mark in first.cache.index.marks()}
    second = opened(tmp_path)
    fetch = second.cache.fetch(np.array([*SHARED, 1], dtype=np.int32), second.cache.index.chain(""))
    assert fetch.advance(wait=True)
    assert fetch.gained == len(SHARED)
    (mark,) = second.cache.index.marks()
    old = before[mark.digest]
    one, other = first.executor, second.executor
    assert bytes(one.slot_memory(old.slot)) == bytes(other.slot_memory(mark.slot))
    assert np.array_equal(one.stamps(old.slot), other.stamps(mark.slot))
    here, there = mark.node, old.node
    while here.page is not None:
        assert bytes(other.page_memory(here.page)) == bytes(one.page_memory(there.page))
        here, there = here.parent, there.parent
    used = len(SHARED) % 16
    assert bytes(other.page_memory(mark.tail_page))[: 8 * used] == bytes(one.page_memory(old.tail_page))[: 8 * used]


def test_o7_what_was_written_holds_no_memory(tmp_path: Path) -> None:
    engine = opened(tmp_path, cache_bytes=60 * 64 + 20 * 256, max_model_len=128)
    for i in range(128):
        harness.one(engine, harness.request(f"r{i}", [i % 50, *SHARED], max_tokens=1))
        engine.disk.spill.writer.work(1)
    engine.disk.spill.writer.work()
    engine.disk.spill.poll()
    assert not engine.disk.pins()
    while engine.cache._evict_one():
        pass
    assert engine.cache.budget.used_bytes == 0


@pytest.mark.parametrize("noise", [5, 40])
def test_e6_what_left_memory_comes_back_from_files(tmp_path: Path, noise: int) -> None:
    engine = opened(tmp_path, cache_bytes=30 * 64 + 12 * 256, max_model_len=128)
    sentinel = harness.request("a", SHARED, max_tokens=1)
    harness.one(engine, sentinel)
    engine.disk.spill.writer.work()
    for i in range(noise):
        harness.one(engine, harness.request(f"n{i}", [(i * 13 + j * 3) % 50 for j in range(60)], max_tokens=1))
    while engine.cache._evict_one():
        pass
    again = harness.one(engine, harness.request("b", SHARED, max_tokens=1))
    assert again.cached == len(SHARED) - 1
    assert again.digest() == harness.cold(sentinel).digest()
