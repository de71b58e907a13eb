"""All that a chunk rule may know of a server: its units, its step limits, what its drafter and kernels do.

The one object that the rules, the oracle and the plugin share. Knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from statemark.align.budget import Budget
from statemark.align.geometry import Geometry
from statemark.align.units import ConfigMinimum, HashUnit, HitUnit, KernelChunk, SchedulerBlock, StateGrid
from statemark.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Frame:
    """`retention` is None for every boundary, 0 for replay points and junctions only, or an interval in tokens."""

    grid: StateGrid
    config_minimum: ConfigMinimum
    scheduler_block: SchedulerBlock
    hash_unit: HashUnit
    hit_unit: HitUnit
    kernel_chunk: KernelChunk
    step_limit: int = 2048
    draft_slots: int = 0
    long_prefill_threshold: int = 0
    drop: bool = False
    lookahead: int = 0
    retention: int | None = 0
    checkpoint_step: int | None = None
    junction_checkpoint: bool = False
    windowed: bool = False  # a sliding-window group has to have its part of every hit
    states_give_back: bool = False  # the recurrent groups count as a drafter's: nobody could tell which group is

    def __post_init__(self) -> None:
        if not self.grid.holds(self.hash_unit):
            raise ConfigurationError(f"the hash unit {self.hash_unit} doesn't divide the state grid {self.grid}")
        if self.step_limit <= self.draft_slots:
            raise ConfigurationError(
                f"a step of {self.step_limit} tokens leaves nothing beside {self.draft_slots} draft slots",
                hint="raise --max-num-batched-tokens",
            )

    @property
    def fine(self) -> bool:
        """Whether a hit may end inside a state block."""
        return self.hit_unit.tokens < self.scheduler_block.tokens

    @property
    def offer_limit(self) -> int:
        """The most tokens that one request can be offered in a step."""
        return self.step_limit - self.draft_slots


def frame_of(
    geometry: Geometry, budget: Budget, *, retention: int | None = 0, junction_checkpoint: bool = False
) -> Frame:
    """The frame of a resolved configuration. Refuses recurrent groups that disagree about their block."""
    drafting = geometry.drafting
    return Frame(
        grid=geometry.grid,
        config_minimum=geometry.config_minimum,
        scheduler_block=geometry.scheduler_block,
        # Without the prefix cache a state spans the whole context, and nothing is hashed.
        hash_unit=geometry.hash_unit if geometry.caching else HashUnit(geometry.grid.tokens),
        hit_unit=geometry.hit_unit,
        kernel_chunk=geometry.kernel_chunk,
        step_limit=budget.scheduled,
        draft_slots=drafting.slots,
        long_prefill_threshold=budget.long_prefill_threshold,
        drop=drafting.block_drop,
        lookahead=drafting.lookahead,
        retention=retention,
        checkpoint_step=geometry.checkpoint_step,
        windowed=any(g.window is not None for g in geometry.cacheable),
        states_give_back=any(g.dropped for g in geometry.state_groups),
        # vLLM takes the junction itself as a stop only with a drafter, fine hits and one MTP module
        junction_checkpoint=(
            junction_checkpoint
            and drafting.block_drop
            and drafting.lookahead <= 1
            and geometry.hit_unit.tokens < geometry.scheduler_block.tokens
        ),
    )


def uniform_frame(
    block: int,
    budget: int,
    *,
    kernel_chunk: int = 64,
    draft_slots: int = 0,
    drop: bool = False,
    lookahead: int = 0,
    retention: int | None = 0,
    checkpoint_step: int | None = None,
    match_unit: int | None = None,
) -> Frame:
    """A frame where every group has the same block, as a hybrid without an odd drafter has."""
    unit = match_unit or block
    return Frame(
        grid=StateGrid(block),
        config_minimum=ConfigMinimum(block),
        scheduler_block=SchedulerBlock(block),
        hash_unit=HashUnit(unit),
        hit_unit=HitUnit(unit),
        kernel_chunk=KernelChunk(kernel_chunk),
        step_limit=budget,
        draft_slots=draft_slots,
        drop=drop,
        lookahead=lookahead,
        retention=retention,
        checkpoint_step=checkpoint_step,
    )
