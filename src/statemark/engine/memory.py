"""Bytes: how people write them, and how many of them the cache may take when nobody says. Knows no cache."""

from __future__ import annotations

import re
from pathlib import Path

from statemark.errors import ConfigurationError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

# Half of what is free: the other half is for the page cache, other processes and what grows with load. Pages and
# states are committed only when they are written, so a large limit costs nothing until it is used.
_SHARE = 2
_LEAST = 64 << 20
_UNKNOWN = 2 << 30


def parse_bytes(name: str, value: int | str) -> int:
    """`1073741824`, `"1GiB"`, `"512M"` and the like; K, M, G and T are powers of 1024."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ConfigurationError(f"{name} must be a number of bytes or a text like '2GiB', got {value!r}")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None:
            raise ConfigurationError(
                f"{name} {value!r} is not a size", hint="write it like '2GiB', '512MiB' or a number of bytes"
            )
        return int(float(match[1]) * 1024 ** _POWERS[(match[2] or "").upper()])
    if value < 1:
        raise ConfigurationError(
            f"{name} must be at least 1 byte, got {value}", hint="'auto' takes half of what is free"
        )
    return value


def automatic_cache_bytes() -> int:
    """Half of the memory that this process could still get, at least 64 MiB."""
    available = available_bytes()
    return max(_LEAST, (_UNKNOWN if available is None else available) // _SHARE)


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the machine has left, or the control group if that is less; None where neither can be read."""
    found = [left for left in (_machine(root), _group_v2(root), _group_v1(root)) if left is not None]
    return max(0, min(found)) if found else None


def _machine(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _group_v2(root: Path) -> int | None:
    folder = root / "sys/fs/cgroup"
    return _left(folder / "memory.max", folder / "memory.current", folder / "memory.stat", "inactive_file")


def _group_v1(root: Path) -> int | None:
    folder = root / "sys/fs/cgroup/memory"
    limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
    return _left(limit, used, folder / "memory.stat", "total_inactive_file")


def _left(limit: Path, used: Path, stat: Path, reclaimable: str) -> int | None:
    """Files that nobody reads any more count as used, but the kernel gives them up for us."""
    most, now = _read(limit).strip(), _read(used).strip()
    if not most.isdigit() or not now.isdigit():
        return None
    match = re.search(rf"^{reclaimable} (\d+)$", _read(stat), re.MULTILINE)
    return int(most) - int(now) + (int(match[1]) if match else 0)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
