"""Sizes as people write them, and what is left of a machine's memory, read from made-up files."""

from __future__ import annotations

from pathlib import Path

import pytest

from statemark.engine import memory
from statemark.engine.memory import automatic_cache_bytes, available_bytes, parse_bytes
from statemark.errors import ConfigurationError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5),
        ("5", 5),
        ("5B", 5),
        ("2KiB", 2048),
        ("2kb", 2048),
        ("1.5 MiB", 3 * MIB // 2),
        ("3G", 3 << 30),
        (" 1T ", 1 << 40),
    ],
)
def test_sizes(value, expected) -> None:
    assert parse_bytes("cache_memory", value) == expected


@pytest.mark.parametrize("value", [0, -1, "", "GiB", "-1G", "1 XiB", "one", True, None, 1.5, [1]])
def test_sizes_that_are_none(value) -> None:
    with pytest.raises(ConfigurationError, match="cache_memory") as caught:
        parse_bytes("cache_memory", value)
    assert repr(value) in str(caught.value)


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


PLENTY = {"proc/meminfo": f"MemTotal: 9999999 kB\nMemAvailable: {8 << 20} kB\nBuffers: 5 kB\n"}  # 8 GiB
V2 = {
    "sys/fs/cgroup/memory.max": f"{1 << 30}\n",
    "sys/fs/cgroup/memory.current": f"{512 * MIB}\n",
    "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {100 * MIB}\nactive_file 7\n",
}
V1 = {
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{2 << 30}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 << 30}\n",
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (PLENTY, 8 << 30),
        (PLENTY | V2, 612 * MIB),
        (PLENTY | V2 | {"sys/fs/cgroup/memory.max": "max\n"}, 8 << 30),
        (PLENTY | V1, 1 << 30),
        (V2 | {"sys/fs/cgroup/memory.current": f"{3 << 30}\n"}, 0),
        ({}, None),
    ],
    ids=["machine", "group v2", "group without limit", "group v1", "beyond the limit", "nothing to read"],
)
def test_what_is_left(tmp_path, files, expected) -> None:
    assert available_bytes(machine(tmp_path, files)) == expected


@pytest.mark.parametrize(("left", "expected"), [(8 << 30, 4 << 30), (0, 64 * MIB), (None, 1 << 30)])
def test_the_cache_takes_half_and_never_nothing(monkeypatch, left, expected) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: left)
    assert automatic_cache_bytes() == expected
