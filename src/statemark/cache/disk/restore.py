"""From a checkpoint to a mark in memory: which one a prompt should have, whether reading it pays, and every check.

What is read goes straight into pages and a slot of the cache that nobody else holds yet; it is published, by the same
way as a mark that was just computed, only after every byte of it was checked. A thread reads and checks, so that the
engine's steps go on; all else is done by the engine's thread.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from statemark.cache.digest import PAGE_TOKENS, PrefixChain, Tokens, stamp_seed
from statemark.cache.disk.files import batches, opened, read_all, reason_of
from statemark.cache.disk.folder import Entry, Folder
from statemark.cache.disk.memory import Memory
from statemark.cache.disk.pace import Pace
from statemark.cache.disk.record import Layout, Record, UnusableError, read_record
from statemark.cache.disk.worker import Job, Worker
from statemark.cache.index import Head, Lookup
from statemark.cache.manager import CacheManager, Lease
from statemark.errors import IntegrityError

logger = logging.getLogger(__name__)

_TRIES = 4  # checkpoints that one prompt may find unusable before it is computed


@dataclass(eq=False)
class Reading:
    """A checkpoint to read: `line` are its files, nearest first; `pages` and `slot` the memory that it shall fill.

    `have`: pages of it that are there already. Afterwards `record` is the checkpoint's, or `failed` says why not.
    """

    line: list[Entry]
    have: int
    tokens: Tokens
    pages: list[memoryview]
    slot: memoryview
    count: int = 0  # bytes
    seconds: float = 0.0
    record: Record | None = None
    failed: OSError | UnusableError | None = None


@dataclass(eq=False)
class Fetch:
    """A prompt's prefix on its way from disk. `gained`: tokens that it saved, once it has `ended`.

    `pages` and `slot` are what it holds meanwhile.
    """

    reader: Worker[Reading]
    gained: int = 0
    ended: bool = False
    pages: list[int] = field(default_factory=list)
    slot: int | None = None
    reading: Job[Reading] | None = None
    steps: Iterator[Job[Reading]] = field(default_factory=lambda: iter(()))

    def advance(self, *, wait: bool) -> bool:
        """Go on with it as far as that is possible without waiting, or to its end; whether it has ended."""
        while not self.ended:
            if self.reading is not None:
                if not wait and not self.reading.free.is_set():
                    return False
                self.reader.wait(self.reading)
                self.reading = None  # before it goes on: a read can be waited for, what is done between reads can't
            self.reading = next(self.steps, None)
            self.ended = self.reading is None
        return True


class Restore:
    """Reads for one cache. Called by the engine's thread, but for `_read_job` and what it calls: the reader's."""

    def __init__(self, cache: CacheManager, memory: Memory, folder: Folder, pace: Pace, *, background: bool) -> None:
        self.folder = folder
        self.pace = pace
        self.counters: Counter[str] = folder.counters
        self._cache = cache
        self._memory = memory
        self._layout: Layout = folder.layout
        self.reader: Worker[Reading] = Worker(self._read_job, background=background)

    def fetch(self, prefix: PrefixChain, tokens: Tokens, others: list[Fetch]) -> Fetch:
        """Bring what the disk has of this prompt, beyond what memory has, into memory: whoever asks advances it.

        `others` are under way: what one of them brings is waited for, not read again.
        """
        fetch = Fetch(self.reader)
        if not self.reader.ended:
            fetch.steps = self._attempts(fetch, prefix, tokens, others)
        return fetch

    def _attempts(
        self, fetch: Fetch, prefix: PrefixChain, tokens: Tokens, others: list[Fetch]
    ) -> Iterator[Job[Reading]]:
        """One checkpoint after the other until one is usable; gives what has to be read before it can go on."""
        self.folder.refresh()
        limit = len(tokens) - 1
        found = self._cache.index.lookup(prefix, tokens, limit)
        candidates = self.folder.candidates(prefix, tokens, found.position, limit)[:_TRIES]
        waited = False
        for other in others:  # the same prompt again, say, after whoever asked first has gone
            job = other.reading
            if job is not None and job.what.line[0] in candidates:
                waited = True
                yield job
                if other.reading is job:
                    other.advance(wait=False)
        for i, entry in enumerate(candidates):
            if i or waited:  # others have run meanwhile
                found = self._cache.index.lookup(prefix, tokens, limit)
            gain = entry.position - found.position
            have = min(len(found.path), entry.full)
            size = self._layout.page_bytes * (entry.full - have + bool(entry.tail)) + self._layout.state_bytes
            if gain <= 0:
                return
            if not self.pace.worth(size, gain, entry.rate):
                self.pace.refused()
                self.counters["disk_slower_than_computing"] += 1
                return
            try:
                yield from self._restore(fetch, entry, have, found, prefix, tokens)
            except UnusableError as error:
                self.counters[f"disk_{error.reason}"] += 1
                if error.reason == "no_room":
                    return
                logger.warning("checkpoint %s isn't used: %s", entry.digest.hex(), error)
            except OSError as error:
                self.counters[f"disk_{reason_of(error)}"] += 1
                logger.warning("checkpoint %s can't be read: %s", entry.digest.hex(), error)
            else:
                fetch.gained = gain
                self.counters["disk_hits"] += 1
                self.counters["disk_tokens_restored"] += gain
                return

    def _restore(
        self, fetch: Fetch, entry: Entry, have: int, found: Lookup, prefix: PrefixChain, tokens: Tokens
    ) -> Iterator[Job[Reading]]:
        """Read one checkpoint and publish it. `have`: full pages of it that memory has."""
        line = self._lineage(entry, have)
        fetch.pages = [node.page for node in found.path[:have] if node.page is not None]
        self._cache.budget.pages.retain_all(fetch.pages)
        try:
            fetch.slot = self._room(entry, fetch.pages, len(tokens))
            views = [self._memory.page_memory(page) for page in fetch.pages[have:]]
            what = Reading(line, have, tokens, views, self._memory.slot_memory(fetch.slot))
            yield self.reader.put(what)
            if what.record is None:
                raise what.failed or UnusableError("failed", "the thread that reads has failed")
            said = what.record.description
            self._memory.set_stamps(fetch.slot, what.record.stamps)
            lease = Lease(prefix, fetch.pages, fetch.slot, 0, stamp_seed(prefix.root), 0, Head(said.prompt_tokens))
            stamps = self._memory.stamps(fetch.slot)
            try:
                self._cache.publish(lease, tokens, entry.position, fetch.slot, stamps, said.kind)
            except IntegrityError as error:
                self.folder.remove(entry.digest)
                raise UnusableError("stamp", str(error)) from None
            fetch.slot = None
        finally:
            if fetch.slot is not None:
                self._cache.drop_slot(fetch.slot)
            self._cache.budget.pages.drop_all(fetch.pages)
            fetch.pages, fetch.slot = [], None
        self.pace.read(what.count, what.seconds)
        self.counters["disk_bytes_read"] += what.count
        self.folder.touch(line)

    def _lineage(self, entry: Entry, have: int) -> list[Entry]:
        try:
            return self.folder.lineage(entry, have)
        except UnusableError:
            if have == 0:  # of no use to anybody any more
                self.folder.remove(entry.digest)
            raise

    def _room(self, entry: Entry, pages: list[int], prompt: int) -> int:
        """A slot and the pages that are missing, which are added to `pages`."""
        budget = self._cache.budget
        whole = (prompt // PAGE_TOKENS + 2) * budget.pages.item_bytes + 2 * budget.slots.item_bytes
        slot = self._cache.take_slot() if whole <= budget.total else None
        while slot is not None and len(pages) < entry.full + bool(entry.tail):
            page = self._cache.take_page()
            if page is None:
                self._cache.drop_slot(slot)
                slot = None
            else:
                pages.append(page)
        if slot is None:
            raise UnusableError("no_room")
        return slot

    def _read_job(self, job: Job[Reading]) -> None:
        """In the reader's thread: read and check a checkpoint's files."""
        what = job.what
        begun, stop = time.perf_counter(), what.have + len(what.pages)
        records = []
        try:
            for file in what.line:
                records.append(self._read(what, file, stop))
                stop = file.base
            what.record = records[0]  # all of them are read: whatever else is raised, there is no record
        except (OSError, UnusableError) as error:
            what.failed = error
        what.seconds = time.perf_counter() - begun

    def _read(self, what: Reading, file: Entry, stop: int) -> Record:
        """Fill the pages from `have` to `stop` that are in this file, and the slot from the checkpoint's own."""
        try:
            with opened(self.folder.path / f"{file.digest.hex()}.mark") as fd:
                record = read_record(fd, self._layout)
                said = record.description
                span = what.tokens[said.base * PAGE_TOKENS : said.position].tobytes()
                if record.digest != file.digest or said.base != file.base or record.tokens != span:
                    raise UnusableError("other_tokens", "the token ids are not the prompt's")
                first = max(file.base, what.have)
                views = what.pages[first - what.have : stop - what.have]
                what.count += self._read_parts(fd, record, first - file.base, views)
                if file is what.line[0]:
                    what.count += self._read_parts(fd, record, record.pages, [what.slot])
                return record
        except (UnusableError, FileNotFoundError):
            self.folder.remove(file.digest)
            raise

    def _read_parts(self, fd: int, record: Record, first: int, views: list[memoryview]) -> int:
        """Read consecutive parts of the payload and check each."""
        count, part = 0, first
        for batch in batches(views):
            count += read_all(fd, batch, record.offset(first) + count)  # type: ignore[arg-type]
            for view in batch:
                record.check_part(part, view)
                part += 1
        return count
