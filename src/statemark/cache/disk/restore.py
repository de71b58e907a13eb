"""From a checkpoint to a mark in memory: which one a prompt should have, whether reading it pays, and every check.

What is read goes straight into pages and a slot of the cache that nobody else holds yet; it is published, by the same
way as a mark that was just computed, only after every byte of it was checked.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from statemark.cache.digest import PAGE_TOKENS, PrefixChain, Tokens, stamp_seed
from statemark.cache.disk.files import batches, opened, read_all, reason_of
from statemark.cache.disk.folder import Entry, Folder
from statemark.cache.disk.memory import Memory
from statemark.cache.disk.pace import Pace
from statemark.cache.disk.record import Layout, Record, UnusableError, read_record
from statemark.cache.index import Head, Lookup
from statemark.cache.manager import CacheManager, Lease
from statemark.errors import IntegrityError

logger = logging.getLogger(__name__)

_TRIES = 4  # checkpoints that one prompt may find unusable before it is computed


class Restore:
    """Reads for one cache. Called by the engine's thread."""

    def __init__(self, cache: CacheManager, memory: Memory, folder: Folder, pace: Pace) -> None:
        self.folder = folder
        self.pace = pace
        self.counters: Counter[str] = folder.counters
        self._cache = cache
        self._memory = memory
        self._layout: Layout = folder.layout

    def fetch(self, prefix: PrefixChain, tokens: Tokens) -> int:
        """Bring what the disk has of this prompt, beyond what memory has, into memory; tokens that this gains."""
        self.folder.refresh()
        limit = len(tokens) - 1
        found = self._cache.index.lookup(prefix, tokens, limit)
        for entry in self.folder.candidates(prefix, tokens, found.position, limit)[:_TRIES]:
            have = min(len(found.path), entry.full)
            size = self._layout.page_bytes * (entry.full - have + bool(entry.tail)) + self._layout.state_bytes
            if not self.pace.worth(size, entry.position - found.position, entry.rate):
                self.pace.refused()
                self.counters["disk_slower_than_computing"] += 1
                return 0
            try:
                self._restore(entry, have, found, prefix, tokens)
            except UnusableError as error:
                self.counters[f"disk_{error.reason}"] += 1
                if error.reason == "no_room":
                    return 0
                logger.warning("checkpoint %s isn't used: %s", entry.digest.hex(), error)
            except OSError as error:
                self.counters[f"disk_{reason_of(error)}"] += 1
                logger.warning("checkpoint %s can't be read: %s", entry.digest.hex(), error)
            else:
                self.counters["disk_hits"] += 1
                self.counters["disk_tokens_restored"] += entry.position - found.position
                return entry.position - found.position
        return 0

    def _restore(self, entry: Entry, have: int, found: Lookup, prefix: PrefixChain, tokens: Tokens) -> None:
        """Read one checkpoint and publish it. `have`: full pages of it that memory has."""
        line = self._lineage(entry, have)
        pages = [node.page for node in found.path[:have] if node.page is not None]
        self._cache.budget.pages.retain_all(pages)
        slot: int | None = None
        begun, count = time.perf_counter(), 0
        try:
            slot = self._room(entry, pages, len(tokens))
            stop = entry.full + bool(entry.tail)
            for file in line:
                size, read = self._read(file, pages[:stop], have, slot if file is entry else None, tokens)
                count, stop = count + size, file.base
                if file is entry:
                    said = read.description
            seed = stamp_seed(prefix.root)
            lease = Lease(prefix, pages, slot, 0, seed, 0, Head(said.prompt_tokens))
            stamps = self._memory.stamps(slot)
            try:
                self._cache.publish(lease, tokens, entry.position, slot, stamps, said.kind)
            except IntegrityError as error:
                self.folder.remove(entry.digest)
                raise UnusableError("stamp", str(error)) from None
            slot = None
            pages = lease.pages
        finally:
            if slot is not None:
                self._cache.drop_slot(slot)
            self._cache.budget.pages.drop_all(pages)
        self.pace.read(count, time.perf_counter() - begun)
        self.counters["disk_bytes_read"] += count
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

    def _read(self, file: Entry, pages: list[int], have: int, slot: int | None, tokens: Tokens) -> tuple[int, Record]:
        """Fill those of `pages` from `have` on that are in this file, and the slot if there is one; bytes read."""
        try:
            with opened(self.folder.path / f"{file.digest.hex()}.mark") as fd:
                record = read_record(fd, self._layout)
                said = record.description
                span = tokens[said.base * PAGE_TOKENS : said.position].tobytes()
                if record.digest != file.digest or said.base != file.base or record.tokens != span:
                    raise UnusableError("other_tokens", "the token ids are not the prompt's")
                first = max(file.base, have)
                views = [self._memory.page_memory(page) for page in pages[first:]]
                count = self._read_parts(fd, record, first - file.base, views)
                if slot is not None:
                    count += self._read_parts(fd, record, record.pages, [self._memory.slot_memory(slot)])
                    self._memory.set_stamps(slot, record.stamps)
                return count, record
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
