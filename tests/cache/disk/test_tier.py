"""Checkpoints through the whole engine with the toy executor: found again, separate, within their budget, never wrong.

The toy's answers depend on every byte of pages and states, so an answer that equals the cold one proves the bytes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statemark.cache.disk.pace import Always, Pace
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions, disk_options
from statemark.errors import ConfigurationError, IntegrityError
from tests.cache.disk.forging import swap_states
from tests.engine import harness
from tests.toy import ToyExecutor

PROMPT = [i * 7 % 41 for i in range(100)]


def opened(path: Path, executor: ToyExecutor | None = None, **options: Any) -> Engine:
    """An engine over `path`; its writer works when `written` is called."""
    given = {"path": path, "limit": 1 << 20, "pace": Always(), "background": False}
    disk = DiskOptions(**(given | {k: options.pop(k) for k in list(options) if k in given}))
    return harness.engine(executor or ToyExecutor(), disk=disk, **options)


def written(engine: Engine) -> None:
    """Everything that waits is on disk; nothing is written that doesn't wait."""
    assert engine.disk is not None
    engine.disk.spill.writer.work()
    engine.disk.spill.poll()
    engine.check_integrity()


def stat(engine: Engine, name: str) -> int:
    return int(engine.stats().get(f"disk_{name}", 0))


def ask(engine: Engine, prompt: list[int] = PROMPT, name: str = "r", **options: Any) -> harness.Collected:
    """Ask, and hold the answer to the oracle."""
    request = harness.request(name, prompt, **options)
    answer = harness.one(engine, request)
    assert (answer.finish, answer.digest()) == ("length", harness.cold(request).digest())
    return answer


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.mark"))


def test_the_next_process_resumes_where_this_one_ended(tmp_path: Path) -> None:
    first = opened(tmp_path)
    answer = ask(first, turns=[50])
    written(first)
    second = opened(tmp_path)
    assert ask(second).cached == len(PROMPT) - 1
    assert stat(second, "tokens_restored") == len(PROMPT) - 1
    assert ask(second, name="edited", prompt=[*PROMPT[:70], 3, 3, 3]).cached == 50
    third = opened(tmp_path)
    longer = PROMPT + answer.tokens + [1, 2, 3]
    assert ask(third, prompt=longer).cached == len(PROMPT) + len(answer.tokens) - 1, "states of decoding are kept too"


def test_an_edit_in_the_middle_resumes_at_a_message_end(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine, turns=[50])
    written(engine)
    assert ask(opened(tmp_path), prompt=[*PROMPT[:70], 3, 3, 3]).cached == 50


def test_a_chat_over_many_processes_computes_new_tokens_only_and_writes_pages_once(tmp_path: Path) -> None:
    chat, kept = list(PROMPT), 0
    for turn in range(6):
        engine = opened(tmp_path)
        answer = ask(engine, prompt=chat, name=f"t{turn}", turns=[len(chat) - 1])
        before = len(chat)
        assert answer.cached == kept
        written(engine)
        kept = before + len(answer.tokens) - 1
        chat += [*answer.tokens, turn, 1, 2, 3, 4]
    engine = opened(tmp_path)
    assert engine.disk is not None
    entries = list(engine.disk.folder._entries.values())
    pages = sum(e.full - e.base for e in entries)
    assert pages <= len(chat) // 16 + len(entries), "the pages of a prefix were written again and again"


def test_salts_and_models_share_nothing(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine, salt="tenant one")
    written(engine)
    assert all(b"tenant one" not in path.read_bytes() for path in files(tmp_path))
    again = opened(tmp_path)
    for salt in ("", "tenant two"):
        assert ask(again, salt=salt, name=f"of {salt}").cached == 0
    assert stat(again, "bytes_read") == 0, "a miss must not even take the time of a read"
    assert ask(again, salt="tenant one", name="own").cached == len(PROMPT) - 1
    for other in ("fingerprint", "precision", "isa"):
        executor = ToyExecutor()
        setattr(executor, other, "another")
        model = opened(tmp_path, executor)
        assert ask(model).cached == 0
        assert stat(model, "foreign") == len(files(tmp_path))


@pytest.mark.parametrize("at", ["header", "tokens", "page", "tail", "state", "everywhere"])
def test_a_flipped_byte_is_a_counted_miss(tmp_path: Path, at: str) -> None:
    engine = opened(tmp_path)
    ask(engine, turns=[50])
    written(engine)
    second = opened(tmp_path)  # has read the headers while they were right
    for path in files(tmp_path):
        raw = bytearray(path.read_bytes())
        state, page = len(raw) - 8, 4096
        where = {"header": 40, "tokens": raw.index(b"}", 32) + 4, "page": page + 3, "tail": state - 1, "state": state}
        for i in [where[at]] if at != "everywhere" else range(len(raw)):
            raw[i] ^= 0x40
        path.write_bytes(raw)
    total = len(files(tmp_path))
    assert ask(second).cached == 0
    assert stat(second, "damaged") + stat(second, "truncated") + stat(second, "foreign") >= 1
    if at in ("header", "tokens", "everywhere"):
        third = opened(tmp_path)
        assert ask(third).cached == 0
        assert stat(third, "marks") == 0
    assert len(files(tmp_path)) < total, "a damaged file is removed"


@pytest.mark.parametrize("size", [0, 10, 4096, -1])
def test_a_truncated_file_is_a_counted_miss(tmp_path: Path, size: int) -> None:
    engine = opened(tmp_path)
    ask(engine)
    written(engine)
    early = opened(tmp_path)
    for path in files(tmp_path):
        os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    assert ask(early).cached == 0
    assert ask(opened(tmp_path)).cached == 0
    assert stat(early, "truncated") + stat(early, "damaged") >= 1


def test_a_checkpoint_whose_pages_are_gone_is_a_miss_and_goes(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine, turns=[50])
    written(engine)
    assert engine.disk is not None
    trunk = next(e for e in engine.disk.folder._entries.values() if e.base == 0)
    os.unlink(tmp_path / f"{trunk.digest.hex()}.mark")
    second = opened(tmp_path)
    assert ask(second).cached == 0
    assert stat(second, "orphan") >= 1
    assert stat(opened(tmp_path), "marks") < stat(engine, "marks")


def test_files_that_vanish_under_a_running_engine_are_misses(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine)
    written(engine)
    second = opened(tmp_path)
    second.disk.folder.refresh = lambda: None  # it hasn't noticed yet
    shutil.rmtree(tmp_path)
    assert ask(second).cached == 0
    assert stat(second, "gone") >= 1
    written(second)  # nor can it write; nothing falls over


def test_two_engines_share_a_directory(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    ask(one)
    written(one)
    assert ask(two).cached == len(PROMPT) - 1, "what the other one wrote since is found"
    for engine in (one, two):
        ask(engine, prompt=PROMPT[:40] + [9] * 50, name="same")
    written(one)
    written(two)
    three = opened(tmp_path)
    assert ask(three, prompt=PROMPT[:40] + [9] * 50).cached == 89
    assert not list(tmp_path.glob(".*"))


def test_a_state_of_another_position_is_refused(tmp_path: Path) -> None:
    """Files whose checksums are right, but whose state was taken elsewhere: the stamps that travel with it tell."""
    engine = opened(tmp_path)
    ask(engine, turns=[50])
    written(engine)
    assert swap_states(tmp_path) >= 2
    second = opened(tmp_path)
    assert ask(second).cached == 0
    assert stat(second, "stamp") >= 1
    assert second.cache.budget.slots.used == len(second.cache.index)


def test_a_mark_whose_slot_was_overwritten_is_not_written(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine)
    assert engine.disk is not None
    for job in engine.disk.spill._pending.values():
        job.what.stamps[:] += np.uint64(1)
    written(engine)
    assert files(tmp_path) == []


def test_the_budget_holds_and_what_is_used_stays(tmp_path: Path) -> None:
    engine = opened(tmp_path, limit=60_000, cache_bytes=20_000)
    ask(engine, name="first")
    written(engine)
    for i in range(30):
        ask(engine, prompt=[i % 50] * 60, name=f"r{i}")
        written(engine)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 60_000
        if i % 3 == 0:
            with_disk = opened(tmp_path, limit=60_000)
            assert ask(with_disk, name="still").cached == len(PROMPT) - 1, "used every time, and pushed out"
    assert stat(engine, "evicted") > 20


def test_a_limit_below_one_checkpoint_is_refused_with_its_numbers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"100 bytes holds no checkpoint: .* 8 bytes .* and 128 ") as caught:
        opened(tmp_path / "new", limit=100)
    assert "raise cache_disk to 272" in (caught.value.hint or "")
    assert not (tmp_path / "new").exists()


def test_a_full_file_system_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statemark.engine.disk._left", lambda path: 100)
    engine = opened(tmp_path, limit=None)
    assert any("room for 50 bytes of checkpoints" in notice for notice in engine.notices)


def test_a_budget_below_this_checkpoint_writes_nothing(tmp_path: Path) -> None:
    engine = opened(tmp_path, limit=200)
    ask(engine)
    written(engine)
    assert files(tmp_path) == []
    assert stat(engine, "too_large") >= 1


def test_leftovers_go_and_other_files_stay(tmp_path: Path) -> None:
    left = tmp_path / f".{'a' * 32}.123.4.tmp"
    left.write_bytes(b"half")
    own = tmp_path / "notes.txt"
    own.write_text("of the operator")
    engine = opened(tmp_path)
    assert not left.exists()
    assert own.exists()
    assert stat(engine, "leftovers_removed") == 1


def test_what_waits_is_given_up_when_memory_is_needed(tmp_path: Path) -> None:
    """Marks that wait for a writer that never comes: they are pinned, and must not starve anybody."""
    engine = opened(tmp_path, cache_bytes=8 * 64 + 6 * 256, max_model_len=112)
    for i in range(6):
        ask(engine, prompt=[i] * 90, name=f"r{i}")
    assert stat(engine, "writes_given_up") + stat(engine, "writes_skipped") > 0
    engine.check_integrity()


def test_a_damaged_mark_does_not_come_back_from_disk(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine)
    written(engine)
    for mark in list(engine.cache.index.marks()):
        engine.executor._stamps[mark.slot] += np.uint64(1)
    answer = ask(engine, name="again")
    assert answer.cached < len(PROMPT) - 1 or engine.stats()["marks_discarded"]
    assert engine.stats()["marks_discarded"] >= 1


def test_closing_writes_the_rest(tmp_path: Path) -> None:
    engine = opened(tmp_path, background=True, cache_bytes=100_000)
    engine.disk.spill._most = 0  # as if the writer was always behind
    for i in range(5):
        ask(engine, prompt=[i] * 60, name=f"r{i}")
    assert files(tmp_path) == []
    engine.disk.spill._most = 2
    engine.close(60)
    second = opened(tmp_path)
    for i in range(5):
        assert ask(second, prompt=[i] * 60, name=f"r{i}").cached == 59
    engine.check_integrity()


def test_a_thread_writes_while_the_engine_runs(tmp_path: Path) -> None:
    engine = opened(tmp_path, background=True)
    for i in range(20):
        ask(engine, prompt=[*PROMPT, *[i] * 20], name=f"r{i}", turns=[100])
    engine.close(60)
    second = opened(tmp_path)
    for i in range(20):
        assert ask(second, prompt=[*PROMPT, *[i] * 20], name=f"r{i}").cached >= 119
    assert not list(tmp_path.glob(".*"))


def test_reading_that_is_slower_than_computing_is_left_out(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine)
    written(engine)
    slow = Pace(1.0)  # byte a second
    slow.step(1000, 1, 0.001)
    second = opened(tmp_path, pace=slow)
    assert ask(second).cached == 0
    assert stat(second, "slower_than_computing") == 1
    written(second)
    assert stat(second, "not_worth_writing") >= 0


def test_options_that_can_not_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="without cache_dir"):
        disk_options(None, "1GiB", True)
    with pytest.raises(ConfigurationError, match="caching is off"):
        disk_options(tmp_path, "auto", False)
    with pytest.raises(ConfigurationError, match="not a size"):
        disk_options(tmp_path, "much", True)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigurationError, match="can't be made"):
            opened(path)


def test_integrity_covers_what_waits(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    ask(engine)
    engine.check_integrity()
    job = next(iter(engine.disk.spill._pending.values()))
    job.what.mark.pins = 0
    with pytest.raises(IntegrityError):
        engine.check_integrity()
