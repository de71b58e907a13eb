"""The token units of a hybrid model's prefix cache, one type each, so that none can stand in for another.

Every defect of the class that this package is about began with one unit used as another: the smallest page of any
group as the state grid, a hash unit as a page. Knows nothing of models, flags or schedulers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, TypeVar

from statemark.errors import ConfigurationError

Bytes = NewType("Bytes", int)


@dataclass(frozen=True)
class Unit:
    """A number of tokens that positions are measured in. Use one of the named kinds below, never this one."""

    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigurationError(f"{type(self).__name__} must be at least 1 token, got {self.tokens}")

    def floor(self, position: int) -> int:
        """The last boundary at or before `position`."""
        return position // self.tokens * self.tokens

    def ceil(self, position: int) -> int:
        """The first boundary at or after `position`."""
        return -(-position // self.tokens) * self.tokens

    def after(self, position: int) -> int:
        """The first boundary past `position`."""
        return self.floor(position) + self.tokens

    def on(self, position: int) -> bool:
        """Whether `position` is a boundary."""
        return position % self.tokens == 0

    def holds(self, other: Unit) -> bool:
        """Whether every boundary of this unit is one of `other`'s too."""
        return self.tokens % other.tokens == 0

    def __str__(self) -> str:
        return str(self.tokens)


class StateGrid(Unit):
    """The recurrent groups' own block: where a recurrent state can be saved and found."""


class AttentionPage(Unit):
    """The block of one attention group of the model itself."""


class DraftPage(Unit):
    """The block of a drafter's own attention group."""


class RingPage(Unit):
    """A small per-request ring that never enters the prefix cache."""


class ConfigMinimum(Unit):
    """`cache_config.block_size` once the engine is up: the smallest block of any group that is prefix-cacheable."""


class SchedulerBlock(Unit):
    """The least common multiple of all groups' blocks, which vLLM calls the scheduler's block size."""


class HashUnit(Unit):
    """How many tokens one prefix hash covers (`--prefix-match-unit`)."""


class HitUnit(Unit):
    """What a cache hit's length is rounded down to."""


class KernelChunk(Unit):
    """How many tokens the recurrent kernel takes at a time. A cut on its multiples leaves the arithmetic as it was."""


U = TypeVar("U", bound=Unit)
