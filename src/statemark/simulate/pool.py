"""vLLM's block pool: blocks of one size for all groups, references, and the order in which cached ones are lost.

Follows vLLM 0.32's `BlockPool`: blocks that nobody holds wait in a queue; those with a hash go to its end, those
without to its front; whoever takes one from the front takes its hash away.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

Key = tuple[int, Hashable]  # (group's number, digest)


class Pool:
    """`evicted(key)` is called when the last block with that key loses it."""

    def __init__(self, blocks: int, evicted: Callable[[Key], None]) -> None:
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, blocks))  # block 0 is the null block
        self._refs = [0] * blocks
        self._keys: list[Key | None] = [None] * blocks
        self._bound: dict[Key, dict[int, None]] = {}
        self._evicted = evicted

    @property
    def free_blocks(self) -> int:
        return len(self._queue)

    def idle(self, block: int) -> bool:
        """Whether nobody holds this block, so that a hit on it takes it from the queue."""
        return self._refs[block] == 0

    def find(self, key: Key) -> int:
        """The oldest block with this key."""
        return next(iter(self._bound[key]))

    def take(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            block, _none = self._queue.popitem(last=False)
            self._forget(block)
            self._refs[block] = 1
            taken.append(block)
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self._refs[block] == 0:
                del self._queue[block]
            self._refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Give up one reference of each; the first of them is to be reused first."""
        first = []
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            self._queue[block] = None
            if self._keys[block] is None:
                first.append(block)
        for block in reversed(first):
            self._queue.move_to_end(block, last=False)

    def bind(self, block: int, key: Key) -> None:
        if self._keys[block] is None:
            self._keys[block] = key
            self._bound.setdefault(key, {})[block] = None

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is None:
            return
        self._keys[block] = None
        holders = self._bound[key]
        del holders[block]
        if not holders:
            del self._bound[key]
            self._evicted(key)
