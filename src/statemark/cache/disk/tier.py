"""The disk tier as the cache and the engine see it. Owns nothing but its parts."""

from __future__ import annotations

from collections import Counter

from statemark.cache.digest import PrefixChain, Tokens
from statemark.cache.disk.folder import Folder
from statemark.cache.disk.memory import Memory
from statemark.cache.disk.pace import Pace
from statemark.cache.disk.restore import Fetch, Restore
from statemark.cache.disk.spill import Spill
from statemark.cache.index import Mark
from statemark.cache.manager import CacheManager

_DAY = 24 * 3600 * 10**9
_READS = 2  # under way at a time: the one that is waited for, and one whose request went or was overtaken


class DiskTier:
    """All methods are called by the engine's thread.

    `pending`: marks that may wait to be written at a time. `background` False: `writer.work` and `reader.work` do what
    threads would, for tests.
    """

    def __init__(
        self,
        cache: CacheManager,
        memory: Memory,
        folder: Folder,
        pace: Pace,
        *,
        pending: int = 8,
        background: bool = True,
    ) -> None:
        self.folder = folder
        self.pace = pace
        self.spill = Spill(cache, memory, folder, pace, most=pending, background=background)
        self._restore = Restore(cache, memory, folder, pace, background=background)
        self.reader = self._restore.reader
        self._fetches: list[Fetch] = []  # under way, the oldest first

    def stats(self) -> dict[str, int]:
        """Counters, and what the directory holds: checkpoints of this model, bytes of all files."""
        return {"disk_marks": len(self.folder), "disk_bytes": self.folder.bytes, **self.folder.counters}

    def fetch(self, prefix: PrefixChain, tokens: Tokens) -> Fetch:
        """Bring what the disk has of this prompt, beyond what memory has, into memory: whoever asks advances it."""
        self.spill.poll()
        for fetch in self._fetches:
            fetch.advance(wait=False)
        if len(self._under_way()) >= _READS:
            self._fetches[0].advance(wait=True)
        fetch = self._restore.fetch(prefix, tokens, self._under_way())
        self._fetches = [*self._under_way(), fetch]
        return fetch

    def _under_way(self) -> list[Fetch]:
        self._fetches = [fetch for fetch in self._fetches if fetch.reading is not None]
        return self._fetches

    def _settle(self) -> bool:
        """Wait for what is being read, if anything is; nobody may be waiting for it any more."""
        reading = [fetch for fetch in self._fetches if fetch.reading is not None]
        for fetch in reading:
            fetch.advance(wait=True)
        return bool(reading)

    def lent(self) -> tuple[list[list[int]], list[int]]:
        """Pages, by who fills them, and slots that are being filled from files."""
        slots = [fetch.slot for fetch in self._fetches if fetch.slot is not None]
        return [fetch.pages for fetch in self._fetches], slots

    def offer(self, mark: Mark) -> None:
        """A mark was published."""
        self.spill.offer(mark)

    def pins(self) -> Counter[bytes]:
        """How often this tier pins which mark, by digest."""
        return self.spill.pins()

    def relieve(self) -> bool:
        """Memory is needed: give up what waits to be written, let what is being read become a mark that may go.

        True if that may have made room.
        """
        return self.spill.relieve() or self._settle()

    def idle(self) -> None:
        """Nothing runs: write what was skipped."""
        self.spill.idle()

    def close(self, seconds: float) -> None:
        """Write what isn't written yet, for so many seconds at most, and end."""
        self._settle()
        self.reader.close()
        self.spill.close(seconds)

    def superseded(self, mark: Mark) -> None:
        """The conversation has gone further: among files this one counts as unused for a day longer."""
        entry = self.folder.get(mark.digest)
        if entry is not None:
            self.folder.touch([entry], earlier=_DAY)

    def clear(self) -> None:
        """Forget everything of this model, for whoever shares the directory too."""
        self._settle()
        self.spill.relieve()
        self.folder.clear()

    def forget(self, mark: Mark) -> None:
        """A mark turned out damaged: it must not come back."""
        if mark.digest in self.spill.pins():
            self.spill.relieve()
        self.folder.remove(mark.digest)
