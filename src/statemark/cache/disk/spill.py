"""Which marks are written, and how. Owns what waits to be written.

Every published mark is offered. While it waits it is pinned, so its pages and its slot stay as they are and nothing is
copied; when the cache needs the room, what waits is given up (`relieve`). Called by the engine's thread, but for
`_write` and what it calls: the writer's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from statemark.cache.digest import PAGE_TOKENS, PrefixChain
from statemark.cache.disk.files import batches, reason_of
from statemark.cache.disk.folder import Entry, Folder
from statemark.cache.disk.memory import Memory
from statemark.cache.disk.pace import Pace
from statemark.cache.disk.record import Buffer, Description, Layout, Record, UnusableError, checksum
from statemark.cache.disk.worker import Job, Worker, deadline
from statemark.cache.index import Mark, Node
from statemark.cache.manager import CacheManager
from statemark.errors import IntegrityError

_ALL_SETTLED = 100_000


class Pinned:
    """A mark that waits to be written, with what may change under it: the page that it ends in, and its stamps."""

    def __init__(self, mark: Mark, memory: Memory) -> None:
        self.mark = mark
        self.prompt_tokens = mark.head.prompt_tokens
        self.kind = mark.kind
        self.stamps = np.array(memory.stamps(mark.slot), dtype=np.uint64)
        # The sequence goes on writing into this page.
        self.tail_page = None if mark.tail_page is None else bytes(memory.page_memory(mark.tail_page))


class Spill:
    """`most`: marks that may wait to be written at a time."""

    def __init__(
        self, cache: CacheManager, memory: Memory, folder: Folder, pace: Pace, *, most: int, background: bool
    ) -> None:
        self.folder = folder
        self.pace = pace
        self.counters: Counter[str] = folder.counters
        self._cache = cache
        self._memory = memory
        self._layout: Layout = folder.layout
        self._most = most
        self._pending: dict[bytes, Job[Pinned]] = {}
        self._settled: set[bytes] = set()  # digests that were written once, or judged not worth a file
        self.writer: Worker[Pinned] = Worker(self._write, background=background)

    def offer(self, mark: Mark) -> None:
        """A mark was published: have it written, unless too many wait already."""
        if mark.digest in self.folder or mark.digest in self._pending:
            return
        self.poll()
        if len(self._pending) >= self._most:
            self.counters["disk_writes_skipped"] += 1
            return
        self._queue(mark)

    def _queue(self, mark: Mark) -> None:
        self._cache.pin(mark)
        self._pending[mark.digest] = self.writer.put(Pinned(mark, self._memory))

    def pins(self) -> Counter[bytes]:
        """How often this tier pins which mark, by digest."""
        return Counter(self._pending.keys())

    def poll(self) -> None:
        """Unpin what has been written."""
        for digest, job in list(self._pending.items()):
            if job.free.is_set():
                del self._pending[digest]
                self._cache.unpin(job.what.mark)

    def relieve(self) -> bool:
        """Memory is needed: give up what waits to be written. True if that may have made room."""
        if not self._pending:
            return False
        self.counters["disk_writes_given_up"] += sum(not job.free.is_set() for job in self._pending.values())
        self.writer.cancel()
        self.poll()
        return True

    def idle(self) -> None:
        """Nothing runs: write what was skipped, the most worth first, as much as may wait."""
        self.poll()
        for mark in self._unwritten():
            if len(self._pending) >= self._most:
                return
            self._queue(mark)

    def _unwritten(self) -> list[Mark]:
        done = (self._pending, self._settled, self.folder)
        marks = [m for m in self._cache.index.marks() if not any(m.digest in where for where in done)]
        marks.sort(key=lambda m: (-self._cache.order.key(m), m.position))
        return marks

    def close(self, seconds: float) -> None:
        """Write what isn't written yet, for so many seconds at most, and end."""
        left = deadline(seconds)
        self.poll()
        for mark in self._unwritten():
            if not left():
                break
            self._queue(mark)
            if len(self._pending) >= self._most:
                self.writer.settle(left())
                self.poll()
        self.writer.settle(left())
        self.writer.close()
        self.poll()

    def _write(self, job: Job[Pinned]) -> None:
        """In the writer's thread. Reads the mark, its node and the nodes above it, which the pin keeps as they are."""
        mark = job.what.mark
        if mark.digest in self.folder:
            return
        path = _path(mark.node)
        line, pages = self._parents(mark, path)
        parent = line[0] if line else None
        base = parent.full if parent is not None else 0
        size = len(pages) * self._layout.page_bytes + self._layout.state_bytes
        gain = mark.position - (parent.position if parent is not None else 0)
        if not self.pace.worth(size, gain):
            self._settle(mark, "disk_not_worth_writing")
            return
        try:
            record = self._record(job.what, path, base, parent)
            keep = {entry.digest for entry in line}
            if not self.folder.make_room(record.file_bytes, keep):
                self._settle(mark, "disk_too_large")
                return
            self.folder.save(record, _until_cancelled(job, self._parts(job.what, pages)), job.free.set)
        except UnusableError:  # given up; counted by who asked for it
            return
        except OSError as error:
            reason = reason_of(error)
            self.counters[f"disk_{reason}"] += 1
            if reason == "full":
                self.folder.give_back(size, {entry.digest for entry in line})
            return
        self._settle(mark, "disk_marks_written")
        self.counters["disk_bytes_written"] += record.file_bytes

    def _settle(self, mark: Mark, why: str) -> None:
        """Only if it is published anew it is written (again): else a full directory would never come to rest."""
        self.counters[why] += 1
        if len(self._settled) >= _ALL_SETTLED:
            self._settled.clear()
        self._settled.add(mark.digest)

    def _parents(self, mark: Mark, path: list[Node]) -> tuple[list[Entry], list[int]]:
        """The checkpoints that this one goes on from, nearest first, and the pages that they don't have."""
        tokens = np.frombuffer(b"".join([*(node.tokens for node in path), mark.tail]), dtype=np.int32)
        root = path[0].parent if path else mark.node
        assert root is not None
        prefix = PrefixChain(root.digest, [node.digest for node in path])
        for parent in self.folder.candidates(prefix, tokens, 0, mark.position - 1):
            try:
                line = self.folder.lineage(parent, 0)
            except UnusableError:
                continue
            return line, [node.page for node in path[parent.full :] if node.page is not None]
        return [], [node.page for node in path if node.page is not None]

    def _parts(self, what: Pinned, pages: list[int]) -> Iterator[Buffer]:
        for page in pages:
            yield self._memory.page_memory(page)
        if what.tail_page is not None:
            yield what.tail_page
        yield self._memory.slot_memory(what.mark.slot)

    def _record(self, what: Pinned, path: list[Node], base: int, parent: Entry | None) -> Record:
        mark = what.mark
        if np.any(what.stamps != np.array([mark.position, mark.stamp], dtype=np.uint64)):
            raise IntegrityError(f"the state of the mark at {mark.position} has another stamp: it is not written")
        root = path[0].parent if path else mark.node
        assert root is not None
        description = Description(
            fingerprint=self._layout.fingerprint,
            precision=self._layout.precision,
            isa=self._layout.isa,
            page_tokens=PAGE_TOKENS,
            page_bytes=self._layout.page_bytes,
            state_bytes=self._layout.state_bytes,
            stamp_rows=self._layout.stamp_rows,
            digest=mark.digest.hex(),
            base=base,
            base_digest=(path[base - 1].digest if base else root.digest).hex(),
            parent=parent.digest.hex() if parent is not None else "",
            position=mark.position,
            kind=what.kind,
            prompt_tokens=what.prompt_tokens,
            rate=self.pace.compute_rate or 0.0,
        )
        pages = [node.page for node in path[base:] if node.page is not None]
        sums = np.array([checksum(mark.digest, part) for part in self._parts(what, pages)], dtype=np.uint64)
        tokens = b"".join([*(node.tokens for node in path[base:]), mark.tail])
        return Record(description, tokens, sums, what.stamps)


def _path(node: Node) -> list[Node]:
    """The nodes that hold pages, from the first page on."""
    path: list[Node] = []
    at: Node | None = node
    while at is not None and at.page is not None:
        path.append(at)
        at = at.parent
    path.reverse()
    return path


def _until_cancelled(job: Job[Pinned], parts: Iterator[Buffer]) -> Iterator[list[Buffer]]:
    for batch in batches(parts):
        if job.cancelled:
            raise UnusableError("given_up")
        yield batch
