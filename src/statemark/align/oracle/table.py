"""One request's state table: which slots exist, what position each holds, what a step does to them.

Follows the state manager's allocation and the worker's copies. Knows nothing of hashes or other requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from statemark.align.oracle.prompt import Digest
from statemark.align.units import StateGrid


@dataclass(frozen=True, slots=True)
class Content:
    """What a slot really holds: the state after `position` tokens named by `digest`.

    `honest` turns false once a request has gone on from an entry that held something else than it said.
    """

    position: int
    digest: Digest
    honest: bool = True


class StateTable:
    """Columns of the state grid; an absent column is vLLM's null block."""

    def __init__(self, grid: StateGrid) -> None:
        self.grid = grid
        self.slots: dict[int, Content] = {}
        self.running: int | None = None
        self.published = 0  # columns already offered to the cache, by position
        self._previous: int | None = None

    def resume(self, position: int, content: Content) -> None:
        """Begin from a cache hit at `position`."""
        column = self._column(position)
        self.slots = {column: replace(content)}
        self.running = column
        self.published = position // self.grid.tokens

    def begin_step(self, start: int, end: int) -> None:
        """Retire what the request has left behind, and open the column that this step ends in."""
        if start > 0:
            first_needed = (start - 1) // self.grid.tokens
            for column in [c for c in self.slots if c < first_needed]:
                del self.slots[column]
            if self._previous is not None and self._previous < self._column(start):
                self.slots.pop(self._previous, None)
        column = self._column(end)
        if column != self.running:
            self._previous = self.running
            if self.running is not None and self.running in self.slots:
                self.slots[column] = self.slots[self.running]  # the worker copies the state over before the forward
            self.running = column

    def advance(self, content: Content) -> None:
        """The forward leaves this state in the running column."""
        assert self.running is not None
        self.slots[self.running] = content

    def put(self, column: int, content: Content) -> None:
        """A state exported into a column of its own."""
        self.slots[column] = content

    def content(self) -> Content | None:
        return None if self.running is None else self.slots.get(self.running)

    def _column(self, position: int) -> int:
        return -(-position // self.grid.tokens) - 1
