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
        self._fetch: Fetch | None = None  # the last one: at most one is under way

    def stats(self) -> dict[str, int]:
        """Counters, and what the directory holds: checkpoints of this model, bytes of all files."""
        return {"disk_marks": len(self.folder), "disk_bytes": self.folder.bytes, **self.folder.counters}

    def fetch(self, prefix: PrefixChain, tokens: Tokens) -> Fetch:
        """Bring what the disk has of this prompt, beyond what memory has, into memory: whoever asks advances it."""
        self.spill.poll()
        self._settle()
        self._fetch = self._restore.fetch(prefix, tokens)
        return self._fetch

    def _settle(self) -> bool:
        """Wait for what is being read, if anything is; nobody may be waiting for it any more."""
        if self._fetch is None or self._fetch.reading is None:
            return False
        return self._fetch.advance(wait=True)

    def lent(self) -> tuple[list[int], list[int]]:
        """Pages and slots that are being filled from files."""
        fetch = self._fetch
        return ([], []) if fetch is None else (fetch.pages, [] if fetch.slot is None else [fetch.slot])

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
