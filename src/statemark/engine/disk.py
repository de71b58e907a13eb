"""Opens the disk tier of an engine: what must match for a file to be of use, and how many bytes it may take."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from statemark.cache import PAGE_TOKENS, CacheManager
from statemark.cache.disk import DiskTier, Folder, Layout, Pace
from statemark.engine.executor import Executor
from statemark.engine.memory import parse_bytes
from statemark.errors import ConfigurationError

_SHARE = 2  # of what the file system has left
_PINNED_SHARE = 8  # of all states: as many may wait to be written


@dataclass(frozen=True, kw_only=True)
class DiskOptions:
    """`path`: the directory. `limit`: bytes that it may take; None is half of what its file system has left.

    `pace` and `background` are for tests: what is worth reading, and whether a thread writes.
    """

    path: Path
    limit: int | None = None
    pace: Pace | None = None
    background: bool = True


def disk_options(cache_dir: str | Path | None, cache_disk: int | str, enabled: bool) -> DiskOptions | None:
    """From what the caller said; None without a directory."""
    if cache_dir is None:
        if cache_disk != "auto":
            raise ConfigurationError("cache_disk is given without cache_dir", hint="name the directory too")
        return None
    if not enabled:
        raise ConfigurationError(
            "cache_dir is given, but prefix caching is off", hint="leave out one of them: nothing would be kept"
        )
    limit = None if cache_disk == "auto" else parse_bytes("cache_disk", cache_disk)
    return DiskOptions(path=Path(cache_dir), limit=limit)


def open_tier(options: DiskOptions, executor: Executor, cache: CacheManager, notices: list[str]) -> DiskTier:
    """ConfigurationError if the directory can't be made, or the limit is below one checkpoint.

    A directory that can't be written is read only, and counted; a file system without room is told in `notices`.
    """
    layout = Layout(
        fingerprint=executor.fingerprint,
        precision=executor.precision,
        isa=executor.isa,
        page_bytes=len(executor.page_memory(0)),
        state_bytes=len(executor.slot_memory(0)),
        stamp_rows=len(executor.stamps(0)),
    )
    least = layout.state_bytes + layout.page_bytes  # of a checkpoint, beside a header and token ids
    if options.limit is not None and options.limit < least:
        raise ConfigurationError(
            f"cache_disk of {options.limit:,} bytes holds no checkpoint: one takes {layout.state_bytes:,} bytes for "
            f"its state and {layout.page_bytes:,} for every {PAGE_TOKENS} tokens",
            hint=f"raise cache_disk to {2 * least:,} or more, or leave out cache_dir",
        )
    folder = Folder(options.path, options.limit or 0, layout, Counter())
    if options.limit is None:
        folder.limit = folder.bytes + _left(options.path) // _SHARE
        if folder.limit < least:
            notices.append(
                f"the file system of {str(options.path)!r} has room for {folder.limit:,} bytes of checkpoints, and one "
                f"takes {least:,}: none will be written"
            )
    pace = options.pace or Pace(folder.probe())
    pending = max(2, cache.budget.slots.capacity // _PINNED_SHARE)
    tier = DiskTier(cache, executor, folder, pace, pending=pending, background=options.background)
    cache.disk = tier
    return tier


def _left(path: Path) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize
