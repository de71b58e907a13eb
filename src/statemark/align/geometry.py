"""What a configuration resolves to: every group's block, the units between them, and what states cost.

Holds results and derives figures from them; `resolve.py` computes them. Knows no scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, gcd, lcm

from statemark.align.drafting import NONE, Drafting
from statemark.align.groups import Group, Role, state_grid
from statemark.align.units import (
    Bytes,
    ConfigMinimum,
    HashUnit,
    HitUnit,
    KernelChunk,
    SchedulerBlock,
    StateGrid,
)
from statemark.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A cache layout as vLLM 0.32 would log it. `caching` is False where the prefix cache is off."""

    groups: tuple[Group, ...]
    kernel_chunk: KernelChunk
    max_model_len: int
    bytes_per_block: Bytes
    drafting: Drafting = NONE
    match_unit: int | None = None
    caching: bool = True
    checkpoint_step: int | None = None  # internal checkpoints fall on multiples of this from a chunk's start

    @cached_property
    def grid(self) -> StateGrid:
        return state_grid(self.groups)

    @cached_property
    def cacheable(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.cacheable)

    @cached_property
    def config_minimum(self) -> ConfigMinimum:
        """`cache_config.block_size` as the scheduler reads it."""
        return ConfigMinimum(min(g.unit.tokens for g in self.cacheable))

    @cached_property
    def scheduler_block(self) -> SchedulerBlock:
        return SchedulerBlock(lcm(*(g.tokens for g in self.groups)))

    @cached_property
    def hash_unit(self) -> HashUnit:
        if not self.caching:
            return HashUnit(self.scheduler_block.tokens)
        sizes = [g.tokens for g in self.cacheable]
        unit = self.match_unit if self.match_unit is not None else gcd(*sizes)
        off = sorted({s for s in sizes if s % unit})
        if off:
            raise ConfigurationError(
                f"--prefix-match-unit {unit} doesn't divide the blocks {', '.join(map(str, off))}: vLLM won't start",
                hint=f"use a divisor of {gcd(*sizes)}",
            )
        return HashUnit(unit)

    @cached_property
    def fine_grained(self) -> bool:
        """Whether hits may land inside a state block."""
        finer = any(g.role is Role.STATE and g.unit.tokens > self.hash_unit.tokens for g in self.groups)
        return self.caching and finer and not self.coarse_groups

    @cached_property
    def coarse_groups(self) -> tuple[Group, ...]:
        """Groups that can't take a hit inside their block, and so turn fine-grained hits off for all."""
        return tuple(g for g in self.cacheable if not g.fine_grained and g.tokens != self.hash_unit.tokens)

    @cached_property
    def hit_unit(self) -> HitUnit:
        return HitUnit(self.hash_unit.tokens if self.fine_grained else self.scheduler_block.tokens)

    @cached_property
    def state_groups(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.role is Role.STATE)

    @property
    def state_bytes(self) -> Bytes:
        """One request's recurrent state on one rank, without padding."""
        return Bytes(sum(g.content_bytes * g.total for g in self.state_groups))

    @property
    def kept_state_bytes(self) -> Bytes:
        """What one kept state takes from the pool: a block of each recurrent group."""
        return Bytes(self.bytes_per_block * sum(g.copies for g in self.state_groups))

    @property
    def fixed_blocks(self) -> int:
        """Blocks that a request holds whatever its length: the running states, their drafts' copies, rings."""
        return sum(g.reserve * g.copies for g in self.groups)

    @property
    def fixed_bytes(self) -> Bytes:
        return Bytes(self.fixed_blocks * self.bytes_per_block)

    def blocks_of(self, tokens: int, in_flight: int = 0) -> int:
        """Blocks that a request of this length holds at most while it runs. A window keeps the tokens of steps that
        are still running beside its own."""
        blocks = self.fixed_blocks
        for group in self.groups:
            if group.role in (Role.STATE, Role.RING):
                continue
            if group.window is None:
                blocks += group.copies * ceil(tokens / group.tokens)
            else:
                held = min(group.window - 1 + in_flight, tokens)
                blocks += group.copies * (ceil(held / group.tokens) + 1)
        return blocks

    def concurrency(self, memory: int, in_flight: int = 0) -> float:
        """How many requests of the maximum length fit, as vLLM logs it."""
        return memory // self.bytes_per_block / self.blocks_of(self.max_model_len, in_flight)
