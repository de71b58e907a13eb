"""One byte budget over pages and state slots, and the ids that it hands out.

Two numbers are kept apart. *Used* bytes are those that somebody holds. *Committed* bytes are those that the process
really has: an id that was freed stays committed (touching it again costs nothing) until the other kind needs the
room; then `release` gives it back to the operating system. Neither ever exceeds the budget.
"""

from __future__ import annotations

from collections.abc import Callable

from statemark.errors import IntegrityError


class IdPool:
    """Reference-counted ids of one kind, all of the same size in bytes."""

    def __init__(self, name: str, item_bytes: int, capacity: int, release: Callable[[int], None]) -> None:
        self.name = name
        self.item_bytes = item_bytes
        self.capacity = capacity
        self.used = 0
        self.committed = 0
        self._refs: dict[int, int] = {}
        self._warm: list[int] = []  # free, still committed; last in, first out, so that memory in caches is reused
        self._cold: list[int] = []  # free, given back
        self._fresh = 0  # ids at and above this were never handed out
        self._release = release

    def refs(self, item: int) -> int:
        return self._refs.get(item, 0)

    def held(self) -> dict[int, int]:
        return dict(self._refs)

    def retain(self, item: int) -> None:
        if item not in self._refs:
            raise IntegrityError(f"{self.name} {item} is free and can't be shared")
        self._refs[item] += 1

    def drop(self, item: int) -> bool:
        """Give up one reference; True when it was the last and the id is free now."""
        left = self._refs.get(item, 0) - 1
        if left < 0:
            raise IntegrityError(f"{self.name} {item} was freed twice")
        if left:
            self._refs[item] = left
            return False
        del self._refs[item]
        self.used -= 1
        self._warm.append(item)
        return True

    def retain_all(self, items: list[int]) -> None:
        """One more reference on each: a long prompt shares thousands of pages."""
        refs = self._refs
        try:
            for item in items:
                refs[item] += 1
        except KeyError as error:
            raise IntegrityError(f"{self.name} {error} is free and can't be shared") from None

    def drop_all(self, items: list[int]) -> None:
        refs = self._refs
        for item in items:
            left = refs.get(item, 0)
            if left > 1:
                refs[item] = left - 1
            else:
                self.drop(item)

    def _take(self) -> int:
        if self._warm:
            item = self._warm.pop()
        else:
            self.committed += 1
            if self._cold:
                item = self._cold.pop()
            else:
                item = self._fresh
                self._fresh += 1
        self._refs[item] = 1
        self.used += 1
        return item

    def _give_back_one(self) -> bool:
        if not self._warm:
            return False
        item = self._warm.pop()
        self._release(item)
        self._cold.append(item)
        self.committed -= 1
        return True


class Budget:
    """Pages and slots under one limit of `total` bytes."""

    def __init__(
        self,
        total: int,
        *,
        page_bytes: int,
        slot_bytes: int,
        release_page: Callable[[int], None] = lambda _: None,
        release_slot: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.total = total
        self.pages = IdPool("page", page_bytes, total // page_bytes, release_page)
        self.slots = IdPool("slot", slot_bytes, total // slot_bytes, release_slot)

    @property
    def used_bytes(self) -> int:
        return self.pages.used * self.pages.item_bytes + self.slots.used * self.slots.item_bytes

    @property
    def committed_bytes(self) -> int:
        return self.pages.committed * self.pages.item_bytes + self.slots.committed * self.slots.item_bytes

    def try_page(self) -> int | None:
        return self._try(self.pages, self.slots)

    def try_slot(self) -> int | None:
        return self._try(self.slots, self.pages)

    def _try(self, pool: IdPool, other: IdPool) -> int | None:
        if self.used_bytes + pool.item_bytes > self.total:
            return None
        if not pool._warm:
            # The new id has to be committed: the other kind's free ids make room first. Since used + new fits,
            # giving back all of them is always enough.
            while self.committed_bytes + pool.item_bytes > self.total:
                if not other._give_back_one():
                    raise IntegrityError(
                        f"budget of {self.total} bytes: {self.committed_bytes} committed, {self.used_bytes} used"
                    )
        return pool._take()

    def check(self) -> None:
        """Raise IntegrityError unless the counters agree with each other and with the limit."""
        for pool in (self.pages, self.slots):
            free = pool._warm + pool._cold
            if pool.used != len(pool._refs) or pool.committed != pool.used + len(pool._warm):
                raise IntegrityError(f"{pool.name} counters: used {pool.used}, held {len(pool._refs)}")
            if len(set(free)) != len(free) or set(free) & set(pool._refs) or len(free) + pool.used != pool._fresh:
                raise IntegrityError(f"{pool.name} ids: free and held ones overlap or are missing")
            if any(n < 1 for n in pool._refs.values()):
                raise IntegrityError(f"{pool.name} with a reference count below one")
        if not self.used_bytes <= self.committed_bytes <= self.total:
            raise IntegrityError(f"{self.used_bytes} used, {self.committed_bytes} committed, {self.total} allowed")
