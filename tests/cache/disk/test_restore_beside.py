"""Reading a prefix from disk beside the steps of others: nobody waits who runs, and nothing leaks if nobody waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from statemark.cache.disk.pace import Always
from statemark.cache.disk.worker import Worker
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions
from tests.engine import harness
from tests.toy import ToyExecutor

PROMPT = [i * 7 % 41 for i in range(100)]
LATER = harness.request("later", PROMPT)


def opened(path: Path, executor: ToyExecutor | None = None, **options: int) -> Engine:
    """Nothing is read or written until the test says so, or nobody runs who would wait for it."""
    disk = DiskOptions(path=path, limit=1 << 20, pace=Always(), background=False)
    return harness.engine(executor or ToyExecutor(), disk=disk, **options)


@pytest.fixture
def reading(tmp_path: Path) -> tuple[Engine, dict[tuple[str, int], harness.Collected]]:
    """One request runs, and what another one wants is on its way from disk."""
    first = opened(tmp_path)
    harness.one(first, LATER)
    first.close()
    engine = opened(tmp_path)
    engine.add_request(harness.request("running", [5] * 30, max_tokens=60))
    seen: dict[tuple[str, int], harness.Collected] = {}
    harness.step(engine, seen)
    engine.add_request(LATER)
    harness.step(engine, seen)
    return engine, seen


def test_who_runs_goes_on_while_another_prefix_is_read(reading) -> None:
    engine, seen = reading
    for _ in range(5):
        before = len(seen["running", 0].tokens)
        harness.step(engine, seen)
        assert len(seen["running", 0].tokens) == before + 1
    assert ("later", 0) not in seen, "its prefix is not there yet"
    engine.disk.reader.work()
    harness.step(engine, seen)
    assert len(seen["later", 0].tokens) == 1
    assert seen["later", 0].cached == len(PROMPT) - 1
    harness.drain(engine, seen)
    assert seen["later", 0].digest() == harness.cold(LATER).digest()


def test_when_nobody_runs_any_more_it_is_waited_for(reading) -> None:
    engine, seen = reading
    engine.abort("running")
    harness.drain(engine, seen)
    assert (seen["later", 0].cached, seen["later", 0].digest()) == (len(PROMPT) - 1, harness.cold(LATER).digest())


def abort(engine: Engine) -> None:
    engine.abort("later")


def reset(engine: Engine) -> None:
    engine.cache.reset()


def close(engine: Engine) -> None:
    engine.close()


def ask_another(engine: Engine) -> None:
    engine.abort("later")
    engine.add_request(harness.request("third", [9] * 40))


def ask_again(engine: Engine) -> None:
    engine.abort("later")
    engine.add_request(harness.request("again", PROMPT))


@pytest.mark.parametrize("event", [abort, reset, close, ask_another, ask_again])
def test_nothing_leaks_whatever_happens_meanwhile(reading, event: Callable[[Engine], None]) -> None:
    engine, seen = reading
    event(engine)
    engine.check_integrity()
    harness.drain(engine, seen)
    engine.check_integrity()
    engine.cache.reset()
    assert engine.cache.budget.used_bytes == 0


@pytest.mark.parametrize("gone", [True, False], ids=["after an abort", "more urgent"])
def test_who_comes_before_a_read_has_ended_doesn_t_wait_for_it(reading, gone: bool) -> None:
    engine, seen = reading
    if gone:
        engine.abort("later")
    engine.add_request(replace(harness.request("third", [9] * 40), priority=-1))
    for _ in range(3):
        before = len(seen["running", 0].tokens)
        harness.step(engine, seen)
        assert len(seen["running", 0].tokens) == before + 1
    assert len(seen["third", 0].tokens) == 3
    assert engine.disk.lent()[1], "its read is still under way"
    harness.drain(engine, seen)
    assert gone or seen["later", 0].cached == len(PROMPT) - 1


def test_what_is_being_read_is_not_read_again_for_the_same_prompt(reading) -> None:
    engine, seen = reading
    ask_again(engine)
    harness.step(engine, seen)
    assert ("again", 0) not in seen
    engine.disk.reader.work()
    harness.step(engine, seen)
    assert engine.stats()["disk_hits"] == 1
    assert seen["again", 0].cached == len(PROMPT) - 1
    harness.drain(engine, seen)
    assert seen["again", 0].digest() == harness.cold(LATER).digest()


def test_a_file_that_turns_out_damaged_meanwhile_is_a_counted_miss(reading, tmp_path: Path) -> None:
    engine, seen = reading
    for path in tmp_path.glob("*.mark"):
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.write_bytes(raw)
    for _ in range(8):  # one after the other is tried
        engine.disk.reader.work()
        harness.step(engine, seen)
    harness.drain(engine, seen)
    assert engine.stats()["disk_damaged"] >= 1
    assert seen["later", 0].digest() == harness.cold(LATER).digest()


def test_memory_that_others_need_is_had_back_from_a_read(tmp_path: Path) -> None:
    """What is being read holds pages and a slot that nobody else can take: who runs must not starve for them."""
    first = opened(tmp_path)
    harness.one(first, LATER)
    first.close()
    executor = ToyExecutor()
    room = 11 * executor.page_bytes + 3 * executor.slot_bytes
    engine = opened(tmp_path, executor, cache_bytes=room, max_model_len=150)
    engine.add_request(harness.request("running", [5] * 30, max_tokens=110))
    seen: dict[tuple[str, int], harness.Collected] = {}
    harness.step(engine, seen)
    engine.add_request(LATER)
    while not seen["running", 0].finish:
        harness.step(engine, seen)
    assert len(seen["running", 0].tokens) == 110
    assert not engine.scheduler.counters["preemptions"]
    harness.drain(engine, seen)
    assert seen["later", 0].digest() == harness.cold(LATER).digest()


def test_what_fails_in_an_unforeseen_way_after_the_first_file_is_not_used(tmp_path: Path, monkeypatch) -> None:
    """A checkpoint's own file was read, those that it goes on from were not: its pages hold anything."""
    first = opened(tmp_path)
    answer = harness.one(first, LATER).tokens
    first.close()
    engine = opened(tmp_path)
    goes_on = harness.request("goes on", [*PROMPT, *answer, 3, 4])
    restore = engine.disk._restore
    read = restore._read

    def fails(what, file, stop):
        if file is not what.line[0]:
            raise MemoryError
        return read(what, file, stop)

    monkeypatch.setattr(restore, "_read", fails)
    found = harness.one(engine, goes_on)
    assert engine.stats()["disk_failed"] == 1
    assert (found.cached, found.digest()) == (len(PROMPT) - 1, harness.cold(goes_on).digest())


def test_who_asks_after_the_close_doesn_t_wait_for_a_thread_that_has_ended(tmp_path: Path) -> None:
    worker: Worker[int] = Worker(lambda _: None)
    worker.close()
    assert worker.put(1).free.is_set()
    first = opened(tmp_path)
    harness.one(first, LATER)
    first.close()
    engine = harness.engine(disk=DiskOptions(path=tmp_path, limit=1 << 20, pace=Always()))
    engine.close()
    assert harness.one(engine, LATER).digest() == harness.cold(LATER).digest()
    engine.close()
