"""From vLLM's final KV cache configuration to the geometry and the frame that `align` works with.

Reads resolved objects only: the block sizes that flags lead to are known when the engine has settled on them, and here
they are taken as they are. Knows vLLM's classes by name, so that it can be tested without vLLM; cuts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemark.align.drafting import NONE, Drafting
from statemark.align.frame import Frame, frame_of
from statemark.align.geometry import Geometry
from statemark.align.groups import Group, Role, state_grid
from statemark.align.units import AttentionPage, Bytes, DraftPage, KernelChunk, RingPage, StateGrid
from statemark.errors import StatemarkError
from statemark.vllm.model import budget_of

_FULL = "FullAttentionSpec"
_WINDOW = "SlidingWindowSpec"
_HIDDEN = "HiddenStateCacheSpec"
_STATE = "MambaSpec"
_RING = "CircularBufferSpec"
# Subclasses that change what a hit needs, in ways that the oracle doesn't model.
_BEYOND = {"RSWASpec", "SinkFullAttentionSpec", "CrossAttentionSpec", "ChunkedLocalAttentionSpec"}


class UnknownLayoutError(StatemarkError):
    """A cache layout that `align` doesn't model. The plugin then leaves vLLM's own cut in place."""


@dataclass(frozen=True)
class Layout:
    """A resolved engine: its geometry and all that a chunk rule may know of it."""

    geometry: Geometry
    frame: Frame


def has_states(scheduler: Any) -> bool:
    """Whether this engine keeps recurrent states in align mode, so that there is anything to cut for."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    mamba = [s for g in groups for s in layer_specs(g.kv_cache_spec) if _STATE in _names(s)]
    return bool(mamba) and all(s.mamba_cache_mode == "align" for s in mamba)


def layer_specs(spec: Any) -> tuple[Any, ...]:
    """The specs of a group's layers: one for all, or one each where vLLM wraps layers that are alike."""
    inner = getattr(spec, "kv_cache_specs", None)
    return tuple(inner.values()) if isinstance(inner, dict) else (spec,)


def read_layout(scheduler: Any, kernel_chunk: KernelChunk) -> Layout:
    """The layout of a constructed scheduler.

    Raises ConfigurationError where recurrent groups disagree about their block, UnknownLayoutError where this is not a
    layout that `align` models, or where vLLM's own units differ from those that follow from the groups.
    """
    config, settings = scheduler.vllm_config, scheduler.cache_config
    ranks = scheduler.dcp_world_size
    coordinator = scheduler.kv_cache_manager.coordinator
    # 0.33 keeps the groups flagged where nothing is dropped, and names those that drop.
    dropped = getattr(coordinator, "drop_eagle_group_ids", coordinator.eagle_group_ids)
    groups = [_group(g, ranks, dropped=i in dropped) for i, g in enumerate(scheduler.kv_cache_config.kv_cache_groups)]
    state_grid(groups)  # refuses groups that disagree, before anything is derived from them
    if getattr(scheduler, "prefix_replay_group_ids", ()):
        raise UnknownLayoutError("a sliding window is replayed after a hit")
    ahead = getattr(scheduler, "num_hash_lookahead_tokens", 0)  # since 0.33
    if ahead:
        raise UnknownLayoutError(f"hashes of blocks look {ahead} tokens ahead, for the drafter")
    step = scheduler.mamba_prefill_checkpoint_alignment if scheduler.mamba_has_prefill_checkpoint_blocks else None
    geometry = Geometry(
        groups=tuple(_merged(groups)),
        kernel_chunk=kernel_chunk,
        max_model_len=scheduler.max_model_len,
        bytes_per_block=Bytes(max(g.layers * g.page_bytes for g in groups)),
        drafting=drafting_of(scheduler),
        match_unit=settings.prefix_match_unit,
        caching=settings.enable_prefix_caching,
        checkpoint_step=step,
    )
    frame = frame_of(
        geometry,
        budget_of(scheduler),
        retention=scheduler.kv_cache_config.prefix_cache_retention_interval,
        junction_checkpoint=settings.enable_mamba_shared_prefix_checkpoint,
    )
    _check_units(scheduler, config, frame)
    return Layout(geometry, frame)


def drafting_of(scheduler: Any) -> Drafting:
    """Speculative decoding as the scheduler has resolved it."""
    spec = scheduler.vllm_config.speculative_config
    if spec is None:
        return NONE
    return Drafting(
        method=str(spec.method),
        depth=scheduler.num_spec_tokens,
        slots=spec.max_num_new_slots_for_drafting,
        lookahead=scheduler.num_prefill_lookahead,
        block_drop=scheduler.use_eagle_block_drop,
    )


def _names(spec: Any) -> set[str]:
    return {c.__name__ for c in type(spec).__mro__}


def _group(group: Any, ranks: int, *, dropped: bool) -> Group:
    specs = layer_specs(group.kv_cache_spec)
    first, layers = specs[0], len(group.layer_names)
    role, label, reserve = _kind(group, specs)
    block = first.block_size
    units = {Role.STATE: StateGrid, Role.RING: RingPage, Role.DRAFT: DraftPage}
    return Group(
        role=role,
        label=label,
        unit=units.get(role, AttentionPage)(block),
        layers=layers,
        copies=1,
        total=layers,
        content_bytes=Bytes(getattr(first, "real_page_size_bytes", first.page_size_bytes)),
        page_bytes=Bytes(first.page_size_bytes),
        window=first.sliding_window if _WINDOW in _names(first) else None,
        reserve=reserve,
        dropped=dropped,
        scale=ranks if getattr(first, "dcp_sharded", False) else 1,
    )


def _kind(group: Any, specs: tuple[Any, ...]) -> tuple[Role, str, int]:
    """Role, label, and how many blocks a request holds whatever its length."""
    first = specs[0]
    names = _names(first)
    if _STATE in names:
        blocks = sorted({s.block_size for s in specs})
        if len(blocks) > 1:
            raise UnknownLayoutError(f"one group holds recurrent layers with blocks {blocks}")
        reserve = 2 + first.num_speculative_blocks + first.num_prefill_checkpoint_blocks
        return Role.STATE, f"recurrent layers, {_few(group.layer_names)}", reserve
    if _RING in names:
        return Role.RING, "ring", 1
    if names & _BEYOND or not first.prefix_cacheable or not names & {_FULL, _WINDOW}:
        raise UnknownLayoutError(f"cache groups of kind {type(first).__name__} are not modelled")
    if group.is_eagle_group:
        return Role.DRAFT, "drafter", 0
    if _HIDDEN in names:
        return Role.HIDDEN, "extracted hidden states", 0
    return Role.ATTENTION, "sliding window" if _WINDOW in names else "attention", 0


def _few(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first


def _merged(groups: Iterable[Group]) -> Iterable[Group]:
    """Groups that differ in nothing but their layers, as one with several copies."""
    from dataclasses import replace

    found: dict[tuple[object, ...], Group] = {}
    for group in groups:
        key = (group.role, group.unit, group.page_bytes, group.content_bytes, group.window, group.dropped, group.scale)
        before = found.get(key)
        if before is None:
            found[key] = group
            continue
        layers = max(before.layers, group.layers)
        found[key] = replace(before, layers=layers, copies=before.copies + 1, total=before.total + group.total)
    return found.values()


def _check_units(scheduler: Any, config: Any, frame: Frame) -> None:
    """vLLM's own units against those that follow from its groups. A difference means that its rules have changed."""
    coordinator = scheduler.kv_cache_manager.coordinator
    hit = getattr(coordinator, "_cache_hit_alignment_tokens", scheduler.block_size)
    pairs = (
        ("smallest block", scheduler.cache_config.block_size, frame.config_minimum.tokens),
        ("scheduler block", scheduler.block_size, frame.scheduler_block.tokens),
        ("hash unit", scheduler.hash_block_size, frame.hash_unit.tokens),
        ("hit unit", hit, frame.hit_unit.tokens),
        ("junction stop", bool(scheduler.mamba_shared_prefix_checkpoint), frame.junction_checkpoint),
        ("draft slots", drafting_of(scheduler).slots, frame.draft_slots),
    )
    for name, theirs, ours in pairs:
        if theirs != ours:
            raise UnknownLayoutError(f"vLLM's {name} is {theirs}, where its groups lead to {ours}")
