"""Bytes in and out of files, many parts at a time and without the interpreter lock. Knows no format."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from statemark.cache.disk.record import Buffer, UnusableError

_BATCH_BYTES = 16 << 20
_BATCH_PARTS = 512  # below IOV_MAX


@contextlib.contextmanager
def opened(path: Path, flags: int = 0) -> Iterator[int]:
    """A file for reading: a regular one (or a directory where asked for), never through a link, never a pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags)
    try:
        if not flags and not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UnusableError("damaged", "not a regular file")
        yield fd
    finally:
        os.close(fd)


def batches(parts: Iterable[Buffer]) -> Iterator[list[Buffer]]:
    """As many parts at once as one call to the system should take."""
    batch: list[Buffer] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part)
        if size >= _BATCH_BYTES or len(batch) == _BATCH_PARTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def write_all(fd: int, parts: list[Buffer]) -> None:
    done = os.writev(fd, parts)
    for part in parts:
        while done < len(part):
            done += os.write(fd, memoryview(part)[done:])
        done -= len(part)


def read_all(fd: int, parts: list[memoryview], offset: int) -> int:
    """Fill `parts` from `offset` on; returns how many bytes that were. UnusableError at the end of the file."""
    size = sum(map(len, parts))
    done = os.preadv(fd, parts, offset)
    if done != size:
        raise UnusableError("truncated", f"{done} bytes at {offset} instead of {size}")
    return size


def reason_of(error: OSError) -> str:
    """A word for the counters."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "denied"
    if error.errno == errno.ENOENT:
        return "gone"
    return "failed"
