"""Somebody breaks the directory while it is in use: a full file system, refused access, odd files, racing processes."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statemark.cache.disk import files as io
from statemark.cache.disk import folder as folder_module
from tests.cache.disk.test_tier import PROMPT, ask, files, opened, stat, written

ROOT = Path(__file__).resolve().parents[3]


class Failing:
    """The operating system, with one call that fails from the `after`-th on."""

    def __init__(self, name: str, number: int, after: int = 0) -> None:
        self.name, self.number, self.left = name, number, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name != self.name:
            return found

        def call(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.number, os.strerror(self.number))
            return found(*args, **options)

        return call


@pytest.mark.parametrize(
    ("call", "number", "reason"),
    [
        ("open", errno.EACCES, "denied"),
        ("open", errno.EROFS, "denied"),
        ("open", errno.EMFILE, "failed"),
        ("open", errno.ENOENT, "gone"),
        ("writev", errno.ENOSPC, "full"),
        ("writev", errno.EDQUOT, "full"),
        ("writev", errno.EIO, "failed"),
        ("fsync", errno.ENOSPC, "full"),
        ("rename", errno.EIO, "failed"),
        ("scandir", errno.EACCES, "denied"),
        ("stat", errno.EIO, "failed"),
        ("preadv", errno.EIO, "failed"),
        ("utime", errno.EPERM, None),
        ("unlink", errno.EROFS, None),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_any_call_may_fail_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, reason: str | None, after: int
) -> None:
    first = opened(tmp_path)
    ask(first, turns=[50])
    written(first)
    broken = Failing(call, number, after)
    monkeypatch.setattr(folder_module, "os", broken)
    monkeypatch.setattr(io, "os", broken)
    engine = opened(tmp_path)
    for i in range(3):
        ask(engine, name=f"r{i}", turns=[50])
        ask(engine, prompt=[*PROMPT[:60], i, 1, 2], name=f"s{i}")
        written(engine)
    if broken.left < 0 and reason is not None:
        assert stat(engine, reason) >= 1
    monkeypatch.undo()
    engine.close()
    assert ask(opened(tmp_path)).cached >= 0
    assert not [path for path in tmp_path.glob(".*") if call != "unlink"]


def test_names_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / f"{'1' * 32}.mark").mkdir()
    (tmp_path / f"{'2' * 32}.mark").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / f"{'3' * 32}.mark")
    (tmp_path / f"{'4' * 32}.mark").symlink_to(tmp_path)
    (tmp_path / f"{'5' * 32}.mark").write_bytes(b"")
    (tmp_path / f".{'6' * 32}.1.1.tmp").mkdir()
    engine = opened(tmp_path)
    ask(engine)
    written(engine)
    assert Path("/etc/passwd").exists()
    assert ask(opened(tmp_path)).cached == len(PROMPT) - 1


def test_a_link_under_a_checkpoints_name_is_not_followed(tmp_path: Path) -> None:
    engine = opened(tmp_path / "a")
    ask(engine)
    written(engine)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in files(tmp_path / "a"):
        path.rename(elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
    assert ask(opened(tmp_path / "a")).cached == 0
    assert files(elsewhere)


@pytest.mark.parametrize("seed", range(12))
def test_random_damage_of_many_files_never_shows(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    engine = opened(tmp_path)
    prompts = [[*PROMPT[: 10 * i], *[i] * 30] for i in range(1, 6)]
    for i, prompt in enumerate(prompts):
        ask(engine, prompt=prompt, name=f"r{i}", turns=[10 * i + 5])
    written(engine)
    late = opened(tmp_path) if seed % 2 else None
    for path in files(tmp_path):
        raw = bytearray(path.read_bytes())
        kind = draw.randrange(5)
        if kind == 0:
            raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del raw[draw.randrange(len(raw)) :]
        elif kind == 2:
            a, b = (draw.randrange(len(raw)) for _ in range(2))
            raw[a : a + 64], raw[b : b + 64] = raw[b : b + 64], raw[a : a + 64]
        elif kind == 3:
            raw = bytearray(draw.choice(files(tmp_path)).read_bytes())
        path.write_bytes(raw)
    engine = late or opened(tmp_path)
    for i, prompt in enumerate(prompts):
        ask(engine, prompt=prompt, name=f"again{i}")
        written(engine)
    engine.check_integrity()


RACER = """
import random, sys
from pathlib import Path
from statemark.cache.disk import Always
from statemark.engine.disk import DiskOptions
from tests.cache.disk.test_tier import ask, opened
seed, path = int(sys.argv[1]), Path(sys.argv[2])
draw = random.Random(seed)
engine = opened(path, background=True, limit=60_000, cache_bytes=6_000, max_model_len=112)
for i in range(60):
    prompt = [draw.randrange(3)] * 40 + [draw.randrange(2)] * draw.randrange(1, 40)
    ask(engine, prompt=prompt, name=f"r{i}", turns=[40])
    engine.check_integrity()
engine.close(60)
bad = [n for n in ("damaged", "truncated", "stamp", "other_tokens") if engine.stats().get("disk_" + n)]
assert not bad, bad
print("hits", engine.stats().get("disk_hits", 0))
"""


def test_processes_that_write_read_and_evict_in_one_directory(tmp_path: Path) -> None:
    """A third of them is killed in the middle."""
    command = [sys.executable, "-c", RACER]
    running = [
        subprocess.Popen([*command, str(i), str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for i in range(3)
    ]
    out, _ = running[0].communicate()
    running[2].kill()
    for process in running[1:]:
        process.communicate()
    assert running[0].returncode == 0
    assert running[1].returncode == 0
    engine = opened(tmp_path, limit=60_000)
    ask(engine, prompt=[1] * 50)
    assert not list(tmp_path.glob(".*"))
    assert b"hits" in out
