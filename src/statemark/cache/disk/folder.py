"""The directory of checkpoints: which exist, bytes in and out, room for new ones. Knows files, not the RAM cache.

Files are named by digest, appear by rename when they are complete, and never change. Several processes may share the
directory: each lists it again when it has changed, and a file that somebody else removed is a miss. `used` (the file's
modification time) says when a checkpoint was last of use, to all of them and across restarts. What goes first when room
is needed: the checkpoint that was unused for longest among those that no other one needs; files of other models and
formats go by the same rule. Thread-safe.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from statemark.cache.digest import PAGE_TOKENS, PrefixChain, Tokens
from statemark.cache.disk.files import opened, read_all, reason_of, write_all
from statemark.cache.disk.record import Buffer, Layout, Record, UnusableError, read_record
from statemark.errors import ConfigurationError

MAX_FILES = 16_384  # more would be slow to list
_NAME = re.compile(r"([0-9a-f]{32})\.mark")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.\d+\.\d+\.tmp")
_SETTLED = 50_000_000  # ns after which a directory's time of change can't hide another change
_PROBE = 4 << 20
_UNKNOWN_RATE = 3e8


@dataclass(eq=False, slots=True)
class Entry:
    """A checkpoint that is there. `node`: digest of its full pages; `tail`: token ids after them."""

    digest: bytes
    node: bytes
    base_digest: bytes
    parent: bytes | None
    base: int
    position: int
    tail: bytes
    size: int
    used: int
    rate: float
    children: set[bytes] = field(default_factory=set)

    @property
    def full(self) -> int:
        return self.position // PAGE_TOKENS


class Folder:
    """`limit`: bytes that all files in `path` may take together. Makes the directory if it isn't there."""

    def __init__(self, path: Path, limit: int, layout: Layout, counters: Counter[str]) -> None:
        self.path = path
        self.limit = limit
        self.layout = layout
        self.counters = counters
        self.bytes = 0
        self._lock = threading.RLock()
        self._entries: dict[bytes, Entry] = {}
        self._by_node: dict[bytes, list[Entry]] = {}
        self._orphans: dict[bytes, set[bytes]] = {}  # children of checkpoints that aren't there (yet)
        self._others: dict[str, tuple[int, int]] = {}  # files of no use to this model: (bytes, used)
        self._changed: int | None = None
        self._serial = 0
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the cache directory {str(path)!r} can't be made: {error.strerror}", hint="name another --cache-dir"
            ) from None
        self.refresh()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def others(self) -> int:
        """Files that are of no use to this model."""
        return len(self._others)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._entries

    def get(self, digest: bytes) -> Entry | None:
        return self._entries.get(digest)

    # --- what is there --------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """List the directory again if it has changed. What can't be listed is kept as it was, and counted."""
        try:
            changed = os.stat(self.path).st_mtime_ns
            if changed == self._changed:
                return
            with self._lock, os.scandir(self.path) as listed:
                now = time.time_ns()
                names = {entry.name for entry in listed}
                for name in names:
                    if _TEMPORARY.fullmatch(name):
                        self._remove_leftover(name)
                    elif _NAME.fullmatch(name) and not self._known(name):
                        self._learn(name)
                for digest in [d for d in self._entries if f"{d.hex()}.mark" not in names]:
                    self._unlist(digest)
                for name in [name for name in self._others if name not in names]:
                    self.bytes -= self._others.pop(name)[0]
            self._changed = changed if now - changed > _SETTLED else None
        except OSError as error:
            self.counters[f"disk_{reason_of(error)}"] += 1

    def _known(self, name: str) -> bool:
        return name in self._others or bytes.fromhex(name[:32]) in self._entries

    def _learn(self, name: str) -> None:
        """Take up a file that is new. A damaged one is removed, one of another model only counted."""
        size, used = 0, 0
        try:
            with opened(self.path / name) as fd:
                found = os.fstat(fd)
                size, used = found.st_size, found.st_mtime_ns
                record = read_record(fd, self.layout)
            if f"{record.description.digest}.mark" != name:
                raise UnusableError("damaged", "named by another digest")
            self._list(record, used)
        except UnusableError as error:
            self.counters[f"disk_{error.reason}"] += 1
            if error.reason == "foreign":
                self._others[name] = (size, used)
                self.bytes += size
            else:
                self._unlink(name)
        except OSError as error:
            reason = reason_of(error)
            self.counters[f"disk_{reason}"] += 1
            if reason != "gone":
                self._others[name] = (0, used)

    def _list(self, record: Record, used: int) -> None:
        said = record.description
        entry = Entry(
            record.digest, record.node(), record.base_digest, record.parent, said.base, said.position, record.tail,
            record.file_bytes, used, said.rate, self._orphans.pop(record.digest, set()),
        )  # fmt: skip
        self._entries[entry.digest] = entry
        self._by_node.setdefault(entry.node, []).append(entry)
        self.bytes += entry.size
        if entry.parent is not None:
            self._children(entry.parent).add(entry.digest)

    def _children(self, digest: bytes) -> set[bytes]:
        entry = self._entries.get(digest)
        return entry.children if entry is not None else self._orphans.setdefault(digest, set())

    def _unlist(self, digest: bytes) -> None:
        entry = self._entries.pop(digest)
        same = self._by_node[entry.node]
        same.remove(entry)
        if not same:
            del self._by_node[entry.node]
        self.bytes -= entry.size
        if entry.children:
            self._orphans[digest] = entry.children
        if entry.parent is not None:
            siblings = self._children(entry.parent)
            siblings.discard(digest)
            if not siblings:
                self._orphans.pop(entry.parent, None)

    def _remove_leftover(self, name: str) -> None:
        """A temporary file that nobody holds a lock on belongs to a writer that died."""
        with contextlib.suppress(OSError, UnusableError), opened(self.path / name) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(self.path / name)  # gone already if its writer has just ended well
            self.counters["disk_leftovers_removed"] += 1

    # --- finding --------------------------------------------------------------------------------------------

    def candidates(self, prefix: PrefixChain, tokens: Tokens, above: int, limit: int) -> list[Entry]:
        """Checkpoints of this prompt at `above` < position <= `limit`, the deepest first."""
        found: list[Entry] = []
        with self._lock:
            if not self._by_node:
                return found
            for depth in range(limit // PAGE_TOKENS, above // PAGE_TOKENS - 1, -1):
                here = self._by_node.get(prefix.page(tokens, depth))
                if here is None:
                    continue
                start = depth * PAGE_TOKENS
                fits = [
                    e for e in here if above < e.position <= limit and e.tail == tokens[start : e.position].tobytes()
                ]
                found += sorted(fits, key=lambda e: -e.position)
        return found

    def lineage(self, entry: Entry, have: int) -> list[Entry]:
        """The checkpoint and those before it that hold its pages from `have` on. UnusableError if one is missing."""
        with self._lock:
            line = [entry]
            while line[-1].base > have:
                child = line[-1]
                parent = self._entries.get(child.parent) if child.parent is not None else None
                if parent is None or parent.full != child.base or parent.node != child.base_digest:
                    raise UnusableError("orphan", "a checkpoint that it goes on from is gone")
                line.append(parent)
            return line

    def touch(self, entries: Iterable[Entry], earlier: int = 0) -> None:
        """They were of use now, or `earlier` nanoseconds ago."""
        now = time.time_ns() - earlier
        for entry in entries:
            entry.used = now
            with contextlib.suppress(OSError):
                os.utime(self.path / f"{entry.digest.hex()}.mark", ns=(now, now))

    # --- writing --------------------------------------------------------------------------------------------

    def save(self, record: Record, parts: Iterator[list[Buffer]], written: Callable[[], None]) -> None:
        """Write a checkpoint; `written` is called once the parts aren't needed any more. OSError as it comes.

        `parts` may raise to give up. The file appears whole or not at all.
        """
        self._serial += 1
        temporary = self.path / f".{record.digest.hex()}.{os.getpid()}.{self._serial}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._lock:  # between the two calls it would look like a leftover to `refresh`
            fd = os.open(temporary, flags, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            write_all(fd, [record.header()])
            for batch in parts:
                write_all(fd, batch)
            written()
            used = time.time_ns()
            os.utime(fd, ns=(used, used))
            os.fsync(fd)
            os.rename(temporary, self.path / f"{record.digest.hex()}.mark")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        self._sync()
        with self._lock:
            if record.digest not in self._entries:
                self._list(record, used)

    def _sync(self) -> None:
        with contextlib.suppress(OSError), opened(self.path, os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def make_room(self, size: int, keep: set[bytes]) -> bool:
        """Remove what was unused for longest until `size` more bytes fit; `keep` stays. False if that isn't enough."""
        with self._lock:
            while self.bytes + size > self.limit or len(self._entries) + len(self._others) >= MAX_FILES:
                if not self._remove_one(keep):
                    return False
        return True

    def give_back(self, size: int, keep: set[bytes]) -> None:
        """The file system is full: remove about `size` bytes of what was unused for longest."""
        with self._lock:
            target = self.bytes - size
            while self.bytes > max(target, 0) and self._remove_one(keep):
                pass

    def _remove_one(self, keep: set[bytes]) -> bool:
        leaves = [e for e in self._entries.values() if not e.children and e.digest not in keep]
        leaf = min(leaves, key=lambda e: e.used, default=None)
        while leaf is not None and self._used_by_others(leaf):
            leaf = min(leaves, key=lambda e: e.used)
        other = min(self._others, key=lambda name: self._others[name][1], default=None)
        if other is not None and (leaf is None or self._others[other][1] <= leaf.used):
            self._unlink(other)
            self.bytes -= self._others.pop(other)[0]
        elif leaf is not None:
            self.remove(leaf.digest)
        else:
            return False
        self.counters["disk_evicted"] += 1
        return True

    def _used_by_others(self, entry: Entry) -> bool:
        """Whether another process used it later than we know; learns when."""
        with contextlib.suppress(OSError):
            used = os.stat(self.path / f"{entry.digest.hex()}.mark").st_mtime_ns
            if used > entry.used:
                entry.used = used
                return True
        return False

    def remove(self, digest: bytes) -> None:
        with self._lock:
            if digest in self._entries:
                self._unlist(digest)
                self._unlink(f"{digest.hex()}.mark")

    def clear(self) -> None:
        """Remove every checkpoint of this model."""
        for digest in list(self._entries):
            self.remove(digest)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(self.path / name)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.counters[f"disk_{reason_of(error)}"] += 1

    def probe(self) -> float:
        """Bytes a second that can be read here: a file is written, read back and checked. Tells `writable`."""
        content = bytes(_PROBE)
        temporary = self.path / f".{'0' * 32}.{os.getpid()}.0.tmp"
        try:
            fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                write_all(fd, [content])
                begun = time.perf_counter()
                read_all(fd, [memoryview(bytearray(_PROBE))], 0)
                xxhash.xxh3_64_intdigest(content)
                return _PROBE / max(time.perf_counter() - begun, 1e-9)
            finally:
                os.close(fd)
                os.unlink(temporary)
        except OSError as error:
            self.counters[f"disk_{reason_of(error)}"] += 1
            return _UNKNOWN_RATE
