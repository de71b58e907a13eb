"""From a model's shape, serve flags and a platform to the geometry that vLLM 0.32 would settle on.

The order is the server's own: preferred block, alignment of attention and state pages, dtype exceptions, the layers'
own blocks, unification. Knows how blocks come about; not what a scheduler does with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, gcd, lcm
from typing import Any

from statemark.align import backends
from statemark.align.backends import Backend
from statemark.align.drafting import Drafting, resolve_drafting
from statemark.align.flags import ServeFlags
from statemark.align.geometry import Geometry
from statemark.align.groups import Group, LayerSpec, Role, packed, split, unify
from statemark.align.kv_bytes import token_bytes
from statemark.align.platforms import Kind, Platform
from statemark.align.shape import Checkpointing, ModelShape, StateDtypeRule
from statemark.align.states import GatedDelta, KimiDelta, StateDtypes, state_bytes
from statemark.align.units import Bytes
from statemark.errors import ConfigurationError

_DTYPE_ALIAS = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class _Sizes:
    """The platform's choice, before layers are looked at one by one."""

    block: int  # attention block that the workers start from
    grid: int  # the recurrent layers' block
    state_page: int  # with padding
    grew: bool


def resolve_geometry(
    shape: ModelShape,
    flags: ServeFlags,
    machine: Platform,
    draft_config: Mapping[str, Any] | None = None,
) -> Geometry:
    """Every group's block and page, and the units that follow."""
    drafting = resolve_drafting(flags.speculative, shape, draft_config)
    caching = prefix_caching(shape, flags, machine)
    model_dtype = _model_dtype(shape, flags)
    dtypes = state_dtypes(shape, flags, machine, model_dtype)
    ranks = flags.tensor_parallel
    kv = token_bytes(shape.attention, flags.kv_cache_dtype, model_dtype, ranks)
    backend = _backend(shape, flags, machine)
    states = [state_bytes(r.kind.tensors(ranks, drafting.depth, dtypes)) for r in shape.recurrent]
    largest = Bytes(max(states))
    sizes = _align(shape, flags, machine, backend, kv, largest, caching)
    sizes = _widen_for_skipped_layers(shape, flags, machine, backend, kv, sizes, model_dtype)
    specs = _layer_specs(shape, flags, machine, backend, drafting, sizes, kv, states, model_dtype)
    groups = _lay_out(specs, shape, flags)
    groups += _hidden_state_groups(groups, drafting, shape)
    step = _checkpoint_step(shape, machine, model_dtype)
    geometry = Geometry(
        groups=tuple(_mark_dropped(groups, drafting)),
        kernel_chunk=shape.kernel_chunk,
        max_model_len=flags.max_model_len or shape.max_model_len,
        bytes_per_block=Bytes(max(g.layers * g.page_bytes for g in groups)),
        drafting=drafting,
        match_unit=flags.prefix_match_unit if caching else None,
        caching=caching,
        checkpoint_step=step,
    )
    _check_units(geometry, flags)
    return geometry


def prefix_caching(shape: ModelShape, flags: ServeFlags, machine: Platform) -> bool:
    """Whether the prefix cache is on in the end. MLA on a CPU turns it off, whatever the flags say."""
    if machine.kind is Kind.CPU and shape.attention.latent:
        return False
    return flags.prefix_caching is not False


def state_dtypes(shape: ModelShape, flags: ServeFlags, machine: Platform, model_dtype: str) -> StateDtypes:
    """Dtypes of a state's two parts, after the config's wishes and the CPU's exception."""
    conv = model_dtype if flags.mamba_cache_dtype == "auto" else flags.mamba_cache_dtype
    recurrent = flags.mamba_ssm_cache_dtype
    rule = shape.state_dtype_rule
    if recurrent == "auto":
        if rule is StateDtypeRule.FLOAT32:
            recurrent = "float32"
        elif rule is StateDtypeRule.CONFIG_OR_FLOAT32:
            recurrent = shape.config_state_dtype or "float32"
        elif rule is StateDtypeRule.CONFIG and shape.config_state_dtype:
            recurrent = shape.config_state_dtype
    elif rule is StateDtypeRule.FLOAT32 and recurrent == "float16":
        raise ConfigurationError(
            "--mamba-ssm-cache-dtype float16: Kimi Delta Attention keeps its state in float32 or bfloat16 only"
        )
    gated = any(isinstance(r.kind, GatedDelta) for r in shape.recurrent)
    if machine.float32_states and not (gated and recurrent in ("float16", "bfloat16")):
        recurrent = "float32"
    return StateDtypes(conv=conv, recurrent=conv if recurrent == "auto" else recurrent)


def _model_dtype(shape: ModelShape, flags: ServeFlags) -> str:
    return shape.dtype if flags.dtype == "auto" else _DTYPE_ALIAS.get(flags.dtype, flags.dtype)


def _backend(shape: ModelShape, flags: ServeFlags, machine: Platform) -> Backend:
    heads = shape.query_heads // flags.tensor_parallel
    kv_heads = max(1, shape.attention.kv_heads // flags.tensor_parallel)
    return backends.choose(
        machine,
        flags.attention_backend,
        latent=shape.attention.latent,
        kv_dtype=flags.kv_cache_dtype,
        grouped=heads > kv_heads,
    )


def _all_backends(shape: ModelShape, backend: Backend) -> tuple[Backend, ...]:
    """The model's own backend and, with a sparse-attention indexer, the indexer's."""
    if shape.indexer is None or not shape.indexer.kernel_states:
        return (backend,)
    sizes = tuple(shape.indexer.pool * n for n in shape.indexer.kernel_states)
    return backend, Backend("the indexer", sizes=sizes)


def _align(
    shape: ModelShape,
    flags: ServeFlags,
    machine: Platform,
    backend: Backend,
    kv: Bytes,
    state: Bytes,
    caching: bool,
) -> _Sizes:
    """Phases 1 and 2: a preferred block, grown until an attention page covers a state."""
    every = _all_backends(shape, backend)
    if machine.kind is Kind.CPU:
        start = flags.block_size or (16 if shape.attention.latent else 128)
    else:
        start = flags.block_size or backends.common_start(every)
    step = max(backend.smallest, start)
    if shape.attention.latent:
        step = max(step, 128)  # decode kernels need 128 / kernel-block pages in a manager block
    block = step * ceil(state / (step * kv))
    common = lcm(*(b.smallest for b in every))
    block = ceil(block / common) * common
    grown = max(start, block)
    if machine.kind is Kind.XPU and any(isinstance(r.kind, GatedDelta) for r in shape.recurrent):
        grown = ceil(grown / 64) * 64
    rejecting = [b.name for b in every if grown != start and not b.accepts(grown)]
    if rejecting:
        raise ConfigurationError(
            f"the block grows to {grown}, which {', '.join(rejecting)} doesn't take: vLLM refuses to start",
            hint="choose another --block-size or --attention-backend",
        )
    model_len = flags.max_model_len or shape.max_model_len
    grid = grown if caching else flags.mamba_block_size or model_len
    return _Sizes(block=grown, grid=grid, state_page=grown * kv, grew=grown > start)


def _widen_for_skipped_layers(
    shape: ModelShape,
    flags: ServeFlags,
    machine: Platform,
    backend: Backend,
    kv: Bytes,
    sizes: _Sizes,
    model_dtype: str,
) -> _Sizes:
    """Phase 3: layers left out of KV quantisation may raise the block again. The state grid stays behind."""
    if not flags.kv_skip_layers or machine.kind is Kind.CPU:
        return sizes
    wide = token_bytes(shape.attention, "auto", model_dtype, flags.tensor_parallel)
    if wide == kv:
        return sizes
    step = max(backend.smallest, sizes.block)
    block = max(sizes.block, step * ceil(max(wide * backend.smallest, sizes.state_page) / (step * kv)))
    return replace(sizes, block=block, state_page=block * kv)


def _layer_specs(
    shape: ModelShape,
    flags: ServeFlags,
    machine: Platform,
    backend: Backend,
    drafting: Drafting,
    sizes: _Sizes,
    kv: Bytes,
    states: list[Bytes],
    model_dtype: str,
) -> list[LayerSpec]:
    """Each kind of layer with its own block, as the workers report it."""
    skipped = sum(s.isdigit() for s in flags.kv_skip_layers)
    quantised = shape.attention_layers + drafting.native_layers - skipped
    specs = [_attention("attention", Role.ATTENTION, quantised, sizes.block, kv, shape.attention.latent)]
    if skipped:
        wide = token_bytes(shape.attention, "auto", model_dtype, flags.tensor_parallel)
        label = "attention without KV quantisation"
        specs.append(_attention(label, Role.ATTENTION, skipped, sizes.block, wide, shape.attention.latent))
    reserve = 1 + drafting.depth
    if prefix_caching(shape, flags, machine):
        reserve = 2 + drafting.depth + int(_checkpoint_step(shape, machine, model_dtype) is not None)
    for layers, content in zip(shape.recurrent, states, strict=True):
        if layers.layers:
            specs.append(
                LayerSpec(
                    role=Role.STATE,
                    label=layers.kind.label,
                    layers=layers.layers,
                    block=sizes.grid,
                    content_bytes=content,
                    page_bytes=max(sizes.state_page, content),
                    reserve=reserve,
                )
            )
    specs += _draft_specs(drafting, flags, machine, backend, sizes, model_dtype)
    if shape.ring is not None:
        block = shape.ring.block(drafting.depth)
        if sizes.block % block:
            raise ConfigurationError(
                f"the ring of {block} tokens doesn't divide the attention block {sizes.block}: vLLM refuses to start",
                hint="choose another draft depth or --block-size",
            )
        specs.append(LayerSpec(Role.RING, shape.ring.label, shape.attention_layers, block, block, block, reserve=1))
    if shape.indexer is not None:
        label = "compressed keys of the sparse-attention indexer"
        specs.append(LayerSpec(Role.INDEX, label, shape.indexer.layers, sizes.block, sizes.block, sizes.block))
    return specs


def _attention(label: str, role: Role, layers: int, block: int, kv: int, latent: bool) -> LayerSpec:
    return LayerSpec(role, label, layers, block, block * kv, block * kv, latent=latent)


def _draft_specs(
    drafting: Drafting, flags: ServeFlags, machine: Platform, backend: Backend, sizes: _Sizes, model_dtype: str
) -> list[LayerSpec]:
    draft = drafting.draft
    if draft is None:
        return []
    ranks = draft.ranks or flags.tensor_parallel
    kv = token_bytes(draft.attention, flags.kv_cache_dtype, model_dtype, ranks)
    own = backend
    if draft.backend is not None:
        own = backends.choose(
            machine, draft.backend, latent=draft.attention.latent, kv_dtype=flags.kv_cache_dtype, grouped=True
        )
    specs = []
    full = draft.layers - draft.sliding_layers
    if full:
        specs.append(_attention("drafter", Role.DRAFT, full, sizes.block, kv, draft.attention.latent))
    if draft.sliding_layers:
        block = own.largest_within(sizes.block)
        spec = _attention("drafter, sliding window", Role.DRAFT, draft.sliding_layers, block, kv, False)
        specs.append(replace(spec, window=draft.window))
    return specs


def _lay_out(specs: list[LayerSpec], shape: ModelShape, flags: ServeFlags) -> list[Group]:
    pool = packed(specs) if shape.ring is not None else split(unify(specs))
    scale = flags.decode_context_parallel
    if scale == 1:
        return pool
    return [replace(g, scale=scale) if g.role is Role.ATTENTION else g for g in pool]


def _hidden_state_groups(groups: list[Group], drafting: Drafting, shape: ModelShape) -> list[Group]:
    """`extract_hidden_states` keeps hidden states in the pool, on a divisor of all the other blocks."""
    if not drafting.hidden_state_layers:
        return []
    page = max(g.page_bytes for g in groups)
    per_token = shape.hidden_size * 2
    common = gcd(*(g.unit.tokens for g in groups))
    limit = max(page // per_token, 1)
    block = max(d for d in range(1, min(common, limit) + 1) if common % d == 0)
    spec = LayerSpec(Role.HIDDEN, "extracted hidden states", 1, block, block * per_token, page)
    return split([spec])


def _mark_dropped(groups: list[Group], drafting: Drafting) -> list[Group]:
    """Which groups give back their last block at a hit. Where the drafter's group isn't found, all of them do."""
    if not drafting.block_drop:
        return groups
    if not drafting.drafter_is_found:
        return [replace(g, dropped=True) for g in groups]
    marked = Role.DRAFT if any(g.role is Role.DRAFT for g in groups) else Role.ATTENTION
    return [replace(g, dropped=g.role is marked) for g in groups]


def _checkpoint_step(shape: ModelShape, machine: Platform, model_dtype: str) -> int | None:
    if shape.checkpointing is Checkpointing.ANY_POSITION:
        return 1
    if shape.checkpointing is Checkpointing.FLASH_KDA:
        fits = machine.kind is Kind.CUDA and machine.capability // 10 in (9, 10, 12) and model_dtype == "bfloat16"
        kinds = [r.kind for r in shape.recurrent if isinstance(r.kind, KimiDelta)]
        return 16 if fits and all(k.head_dim == 128 for k in kinds) else None
    return None


def _check_units(geometry: Geometry, flags: ServeFlags) -> None:
    """What vLLM refuses at start once blocks are known."""
    _ = geometry.grid, geometry.hash_unit
    if not geometry.caching:
        return
    interval, unit = flags.retention_interval, geometry.scheduler_block
    if interval and not unit.on(interval):
        raise ConfigurationError(
            f"--prefix-cache-retention-interval {interval} is not a multiple of the scheduler's block {unit}",
            hint=f"use {unit.after(interval)}, or None to keep every boundary",
        )
    drafting = geometry.drafting
    if drafting.block_drop and drafting.lookahead > unit.tokens:
        raise ConfigurationError(
            f"{drafting.lookahead} draft tokens reach past the scheduler's block {unit}: vLLM refuses to start"
        )
