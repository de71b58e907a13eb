"""The geometry read from a final cache configuration, and what is refused."""

from __future__ import annotations

import pytest

from statemark.align.groups import Role
from statemark.align.units import KernelChunk
from statemark.errors import ConfigurationError
from statemark.vllm.layout import UnknownLayoutError, has_states, read_layout
from tests.vllm.fakes import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheSpec,
    MambaSpec,
    Scheduler,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    caches,
    config,
    group,
    uniform_groups,
)

CHUNK = KernelChunk(64)


def read(groups: list, **options: object):  # type: ignore[no-untyped-def,type-arg]
    return read_layout(Scheduler(config(**options), caches(groups)), CHUNK)  # type: ignore[arg-type]


def test_a_uniform_layout() -> None:
    layout = read(uniform_groups(384))
    assert [(g.role, g.tokens, g.copies) for g in layout.geometry.groups] == [
        (Role.ATTENTION, 384, 1),
        (Role.STATE, 384, 2),
    ]
    frame = layout.frame
    assert (frame.grid.tokens, frame.config_minimum.tokens, frame.hit_unit.tokens) == (384, 384, 384)
    assert (frame.kernel_chunk, frame.step_limit, frame.retention) == (CHUNK, 2048, 0)


def test_the_grid_is_the_recurrent_groups_own() -> None:
    """A window of 64, as FlashInfer gives a drafter: the config's minimum is 64, the grid stays 1648."""
    groups = [
        group(FullAttentionSpec(1648)),
        group(MambaSpec(1648)),
        group(SlidingWindowSpec(64, sliding_window=4096), drafter=True),
    ]
    layout = read(groups)
    assert (layout.frame.config_minimum.tokens, layout.frame.grid.tokens) == (64, 1648)
    assert layout.frame.windowed
    assert layout.geometry.groups[2].role is Role.DRAFT
    hidden = read([group(FullAttentionSpec(800)), group(MambaSpec(800)), group(HiddenStateCacheSpec(200))])
    assert (hidden.frame.config_minimum.tokens, hidden.frame.grid.tokens) == (200, 800)
    assert hidden.geometry.groups[2].role is Role.HIDDEN


def test_a_ring_counts_for_the_common_multiple_only() -> None:
    groups = [*uniform_groups(1600), group(CircularBufferSpec(8))]
    layout = read(groups)
    assert layout.frame.config_minimum.tokens == 1600
    assert layout.frame.hash_unit.tokens == 1600


def test_groups_that_disagree_are_refused_and_shown() -> None:
    groups = [group(FullAttentionSpec(784)), group(MambaSpec(784)), group(MambaSpec(1568), layers=3)]
    with pytest.raises(ConfigurationError) as caught:
        read(groups)
    assert "784" in caught.value.message
    assert "1568" in caught.value.message
    assert "layer.MambaSpec.0 and 2 more" in caught.value.message


def test_wrapped_specs_of_like_layers() -> None:
    wrapped = UniformTypeKVCacheSpecs(384, kv_cache_specs={"a": MambaSpec(384), "b": MambaSpec(384)})
    scheduler = Scheduler(config(), caches([group(FullAttentionSpec(384)), group(wrapped)]))
    assert has_states(scheduler)
    assert read_layout(scheduler, CHUNK).frame.grid.tokens == 384


@pytest.mark.parametrize("spec", [ChunkedLocalAttentionSpec(384), KVCacheSpec(384)])
def test_a_kind_of_group_that_is_not_modelled(spec: KVCacheSpec) -> None:
    with pytest.raises(UnknownLayoutError, match=type(spec).__name__):
        read([*uniform_groups(384), group(spec)])


def test_a_unit_that_vllm_resolves_otherwise() -> None:
    scheduler = Scheduler(config(), caches(uniform_groups(384)))
    scheduler.hash_block_size = 192
    with pytest.raises(UnknownLayoutError, match="hash unit is 192, where its groups lead to 384"):
        read_layout(scheduler, CHUNK)


def test_models_without_states_have_nothing_to_cut_for() -> None:
    assert not has_states(Scheduler(config(), caches([group(FullAttentionSpec(16))])))
    off = [group(FullAttentionSpec(384)), group(MambaSpec(16384, mamba_cache_mode="none"))]
    assert not has_states(Scheduler(config(), caches(off)))


def test_hashes_that_look_ahead_are_not_modelled() -> None:
    """vLLM 0.33 has them beside EAGLE and MTP drafters."""
    scheduler = Scheduler(config(), caches(uniform_groups(384)))
    read_layout(scheduler, CHUNK)
    scheduler.num_hash_lookahead_tokens = 1
    with pytest.raises(UnknownLayoutError, match="look 1 tokens ahead"):
        read_layout(scheduler, CHUNK)
