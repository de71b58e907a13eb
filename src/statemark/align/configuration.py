"""One configuration with everything that follows from it: the input of the findings and of `plan`.

Puts the parts together in order; owns no rule of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statemark.align.budget import Budget, resolve_budget
from statemark.align.families import read_model
from statemark.align.flags import ServeFlags, parse_serve_flags
from statemark.align.frame import Frame, frame_of
from statemark.align.geometry import Geometry
from statemark.align.oracle import CacheGroup, groups_of
from statemark.align.platforms import DEFAULT, Kind, Platform, Usage, platform
from statemark.align.resolve import resolve_geometry
from statemark.align.shape import ModelShape
from statemark.align.source import Fetch, find_model, with_overrides
from statemark.errors import ConfigurationError, UserError

GIB = 1 << 30
_RUNTIME_GIB = 4.0  # what activations, graphs and the CUDA context take beside the weights, roughly


@dataclass(frozen=True)
class Setup:
    """`memory` is the KV-cache memory of one rank in bytes, None where nothing tells it."""

    name: str
    shape: ModelShape
    flags: ServeFlags
    machine: Platform
    usage: Usage
    geometry: Geometry
    budget: Budget
    frame: Frame
    memory: int | None
    memory_known: bool  # given by a flag, not estimated
    concurrency: int | None
    notes: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return groups_of(self.geometry)

    @property
    def in_flight(self) -> int:
        """Tokens of steps that may be running at once: two steps where the scheduler works ahead of a GPU."""
        return self.budget.tokens * (1 if self.machine.kind is Kind.CPU else 2)

    @property
    def blocks(self) -> int | None:
        """Blocks of the pool."""
        if self.flags.blocks_override is not None:
            return self.flags.blocks_override
        return None if self.memory is None else self.memory // self.geometry.bytes_per_block


def make_setup(
    arguments: Sequence[str],
    *,
    gpu: str | None = None,
    usage: str = "server",
    concurrency: int | None = None,
    drafter: str | None = None,
    fetch: Fetch | None = None,
) -> Setup:
    """From a pasted command line to a resolved configuration."""
    name, flags = parse_serve_flags(arguments)
    if name is None:
        raise ConfigurationError(
            "no model is named", hint="statemark check MODEL --max-num-batched-tokens 8192 ..., as for vllm serve"
        )
    source = find_model(name, fetch)
    shape = read_model(with_overrides(source.config, flags.overrides), f"{name}: config.json")
    machine = DEFAULT if gpu is None else platform(gpu)
    notes: list[str] = []
    draft_config = None
    draft_name = drafter or (flags.speculative.model if flags.speculative else None)
    if draft_name is not None and draft_name != name:
        try:
            draft_config = find_model(draft_name, fetch).config
        except UserError as error:
            if drafter is not None:
                raise
            notes.append(f"the drafter's cache is left out: {error.message}")
    geometry = resolve_geometry(shape, flags, machine, draft_config)
    how = Usage(usage)
    budget = resolve_budget(flags, machine, how, geometry.max_model_len, geometry.drafting.slots)
    memory, known = _memory(flags, machine, source.weight_bytes)
    return Setup(
        name=name,
        shape=shape,
        flags=flags,
        machine=machine,
        usage=how,
        geometry=geometry,
        budget=budget,
        frame=frame_of(
            geometry, budget, retention=flags.retention_interval, junction_checkpoint=flags.junction_checkpoint
        ),
        memory=memory,
        memory_known=known,
        concurrency=concurrency,
        notes=(*shape.notes, *notes),
    )


def _memory(flags: ServeFlags, machine: Platform, weights: int | None) -> tuple[int | None, bool]:
    if flags.kv_cache_bytes is not None:
        return flags.kv_cache_bytes, True
    if weights is None or machine.kind is Kind.CPU or machine.assumed:
        return None, False
    share = weights / (flags.tensor_parallel * flags.pipeline_parallel)
    free = machine.memory_gib * GIB * flags.memory_utilization - share - _RUNTIME_GIB * GIB
    return max(int(free), 0), False
