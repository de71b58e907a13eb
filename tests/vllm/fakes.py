"""Stand-ins for vLLM's scheduler and config objects, with the attributes that the plugin reads and no more.

Class names are vLLM's, because the plugin goes by them. Its split is `align`'s rule `vllm-0.32`, which other tests hold
against the real one; that these shapes are the real ones is what the tests with vLLM installed show.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, lcm
from types import SimpleNamespace
from typing import Any

from statemark.align.frame import Frame
from statemark.align.positions import Prefill
from statemark.align.rules import StockRule
from statemark.align.units import ConfigMinimum, HashUnit, HitUnit, KernelChunk, SchedulerBlock, StateGrid


@dataclass(frozen=True)
class KVCacheSpec:
    block_size: int
    page_size_bytes: int = 1 << 20
    prefix_cacheable: bool = True


@dataclass(frozen=True)
class FullAttentionSpec(KVCacheSpec):
    pass


@dataclass(frozen=True)
class HiddenStateCacheSpec(FullAttentionSpec):
    pass


@dataclass(frozen=True)
class ChunkedLocalAttentionSpec(KVCacheSpec):
    pass


@dataclass(frozen=True)
class SlidingWindowSpec(KVCacheSpec):
    sliding_window: int = 512


@dataclass(frozen=True)
class CircularBufferSpec(KVCacheSpec):
    prefix_cacheable: bool = False


@dataclass(frozen=True)
class MambaSpec(KVCacheSpec):
    mamba_cache_mode: str = "align"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0
    prefill_checkpoint_alignment: int | None = None


@dataclass(frozen=True)
class UniformTypeKVCacheSpecs(KVCacheSpec):
    kv_cache_specs: dict[str, KVCacheSpec] = field(default_factory=dict)


QWEN = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "max_position_embeddings": 16384,
}


def group(spec: KVCacheSpec, layers: int = 2, *, drafter: bool = False) -> SimpleNamespace:
    names = [f"layer.{type(spec).__name__}.{n}" for n in range(layers)]
    return SimpleNamespace(kv_cache_spec=spec, layer_names=names, is_eagle_group=drafter)


def uniform_groups(block: int = 384) -> list[SimpleNamespace]:
    return [group(FullAttentionSpec(block)), group(MambaSpec(block)), group(MambaSpec(block))]


def config(
    *,
    budget: int = 2048,
    asynchronous: bool = False,
    additional: object = None,
    model: dict[str, Any] | None = None,
    speculative: SimpleNamespace | None = None,
    max_model_len: int = 16384,
    match_unit: int | None = None,
    device: str = "cpu",
) -> SimpleNamespace:
    hf_config = SimpleNamespace(to_dict=lambda: model or QWEN, architectures=(model or QWEN).get("architectures"))
    return SimpleNamespace(
        additional_config={} if additional is None else additional,
        model_config=SimpleNamespace(
            hf_config=hf_config, model="tiny", dtype="torch.bfloat16", max_model_len=max_model_len
        ),
        scheduler_config=SimpleNamespace(
            async_scheduling=asynchronous,
            max_num_batched_tokens=budget,
            max_num_seqs=8,
            long_prefill_token_threshold=0,
        ),
        cache_config=SimpleNamespace(
            block_size=0,
            prefix_match_unit=match_unit,
            enable_prefix_caching=True,
            mamba_cache_mode="align",
            enable_mamba_shared_prefix_checkpoint=False,
        ),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        speculative_config=speculative,
        device_config=SimpleNamespace(device_type=device),
    )


def caches(groups: list[SimpleNamespace], retention: int | None = 0) -> SimpleNamespace:
    return SimpleNamespace(kv_cache_groups=groups, num_blocks=1000, prefix_cache_retention_interval=retention)


class Scheduler:
    """vLLM's scheduler as the plugin sees it. `lookahead` and `drop` are what a drafter makes of it."""

    lookahead = 0
    drop = False

    def __init__(self, vllm_config: Any, kv_cache_config: Any, **_: Any) -> None:
        groups = kv_cache_config.kv_cache_groups
        hashed = [g.kv_cache_spec.block_size for g in groups if g.kv_cache_spec.prefix_cacheable]
        self.vllm_config = vllm_config
        self.kv_cache_config = kv_cache_config
        self.cache_config = vllm_config.cache_config
        self.cache_config.block_size = min(hashed)
        self.scheduler_config = vllm_config.scheduler_config
        self.block_size = lcm(*(g.kv_cache_spec.block_size for g in groups))
        self.hash_block_size = self.cache_config.prefix_match_unit or gcd(*hashed)
        grids = [s.block_size for g in groups if isinstance(s := g.kv_cache_spec, MambaSpec)]
        windows = any(isinstance(g.kv_cache_spec, SlidingWindowSpec) for g in groups)
        fine = bool(grids) and grids[0] > self.hash_block_size and not windows
        hit = self.hash_block_size if fine else self.block_size
        dropped = {i for i, g in enumerate(groups) if g.is_eagle_group} if self.drop else set()
        self.kv_cache_manager = SimpleNamespace(
            coordinator=SimpleNamespace(eagle_group_ids=dropped, _cache_hit_alignment_tokens=hit)
        )
        self.dcp_world_size = 1
        self.max_model_len = vllm_config.model_config.max_model_len
        self.max_num_scheduled_tokens = self.scheduler_config.max_num_batched_tokens
        self.max_num_running_reqs = self.scheduler_config.max_num_seqs
        self.max_num_encoder_input_tokens = 0
        self.connector = None
        self.num_spec_tokens = 2 if vllm_config.speculative_config else 0
        self.num_prefill_lookahead = self.lookahead
        self.use_eagle_block_drop = self.drop
        self.mamba_has_prefill_checkpoint_blocks = False
        self.mamba_prefill_checkpoint_alignment = None
        self.mamba_shared_prefix_checkpoint = False
        self.prefix_replay_group_ids: tuple[int, ...] = ()
        self.current_step = 0
        self._stock = StockRule(
            Frame(
                grid=StateGrid(grids[0] if grids else self.block_size),
                config_minimum=ConfigMinimum(self.cache_config.block_size),
                scheduler_block=SchedulerBlock(self.block_size),
                hash_unit=HashUnit(self.hash_block_size),
                hit_unit=HitUnit(hit),
                kernel_chunk=KernelChunk(64),
                step_limit=self.max_num_scheduled_tokens,
                drop=self.drop,
                lookahead=self.lookahead,
                retention=kv_cache_config.prefix_cache_retention_interval,
            )
        )

    def _mamba_block_aligned_split(
        self, request: Any, num_new_tokens: int, num_new_local: int = 0, num_external: int = 0
    ) -> int:
        view = Prefill(request.num_prompt_tokens, request.num_tokens, request.shared_prefix_boundary)
        start = request.num_computed_tokens + num_new_local + num_external
        return self._stock._split(view, start, num_new_tokens)

    def _reserve_prefill_lookahead(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        view = Prefill(request.num_prompt_tokens, request.num_tokens, request.shared_prefix_boundary)
        return self._stock._reserve(view, num_computed_tokens, num_new_tokens)

    def make_stats(self) -> SimpleNamespace:
        return SimpleNamespace(num_kv_fetch_reqs_by_stage={"in_progress": 0})


class AsyncScheduler(Scheduler):
    pass


def request(prompt: int, computed: int = 0, *, known: int | None = None, junction: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        num_prompt_tokens=prompt,
        num_computed_tokens=computed,
        num_tokens=prompt if known is None else known,
        shared_prefix_boundary=junction,
    )
