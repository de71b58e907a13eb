"""vLLM's real scheduler and cache manager on any layout, without a model: what each state block holds is tracked here.

For layouts that a CPU's attention backend can't produce, such as a drafter's window on blocks of 64.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.align.tiny_models import CASES


def _hash(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def state(block: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec

    return MambaSpec(block_size=block, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode="align")


def attention(block: int, window: int | None = None) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    heads = {"num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
    if window is not None:
        return SlidingWindowSpec(block_size=block, sliding_window=window, **heads)
    return FullAttentionSpec(block_size=block, **heads)


def hidden(block: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import HiddenStateCacheSpec

    return HiddenStateCacheSpec(block_size=block, num_kv_heads=1, head_size=2, dtype=torch.float32)


@dataclass
class Bare:
    """A scheduler by its class name as the flag gives it, on groups with these specs."""

    scheduler: Any
    holds: dict[int, int] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def build(cls, scheduler_class: str | None, specs: list[Any], budget: int) -> Bare:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.kv_cache_utils import init_none_hash, resolve_kv_cache_block_sizes
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        init_none_hash(_hash)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(CASES["qwen3-next"][0]))
            config = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                max_model_len=16384,
                max_num_batched_tokens=budget,
                max_num_seqs=8,
                enable_prefix_caching=True,
                scheduler_cls=scheduler_class,
            ).create_engine_config()
        groups = [KVCacheGroupSpec([f"layer {i}"], spec) for i, spec in enumerate(specs)]
        caches = KVCacheConfig(
            num_blocks=20_000, kv_cache_tensors=[], kv_cache_groups=groups, prefix_cache_retention_interval=0
        )
        config.cache_config.num_gpu_blocks = caches.num_blocks
        config.cache_config.block_size = min(s.block_size for s in specs if s.prefix_cacheable)
        block, unit = resolve_kv_cache_block_sizes(caches, config)
        made = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=caches,
            structured_output_manager=SimpleNamespace(accept_tokens=lambda request, tokens: True),
            block_size=block,
            hash_block_size=unit,
            include_finished_set=False,
            log_stats=False,
        )
        return cls(made)

    def ask(self, name: str, tokens: list[int]) -> int:
        """One request until its first token; how many tokens it reused."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request

        hasher = get_request_block_hasher(self.scheduler.hash_block_size, _hash)
        request = self.requests[name] = Request(name, tokens, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        self.scheduler.add_request(request)
        cached = None
        for _ in range(400):
            output = self.scheduler.schedule()
            if not self.scheduler.requests:
                break
            ids = list(output.num_scheduled_tokens)
            for new in output.scheduled_new_reqs:
                cached = new.num_computed_tokens
            for one in ids:
                self._forward(one)
            sampled = [[7] if request.num_computed_tokens >= len(tokens) else [] for _ in ids]
            done = ModelRunnerOutput(ids, {n: i for i, n in enumerate(ids)}, sampled_token_ids=sampled)
            self.scheduler.update_from_output(output, done)
        assert cached is not None
        return int(cached)

    def _manager(self) -> Any:
        managers = self.scheduler.kv_cache_manager.coordinator.single_type_managers
        return next(m for m in managers if type(m).__name__ == "MambaManager")

    def _forward(self, name: str) -> None:
        manager, end = self._manager(), self.requests[name].num_computed_tokens
        block = manager.req_to_blocks[name][-(-end // manager.block_size) - 1]
        assert not block.is_null
        self.holds[block.block_id] = end

    def wrong(self) -> list[tuple[int, int]]:
        """(claimed position, position really held) of entries of the state cache that hold something else."""
        manager, pool = self._manager(), self.scheduler.kv_cache_manager.block_pool
        unit, found = self.scheduler.hash_block_size, set()
        for request in self.requests.values():
            for index, value in enumerate(request.block_hashes):
                position = (index + 1) * unit
                entry = pool.get_cached_block(value, [manager.kv_cache_group_id])
                if position % manager.block_size == 0 and entry is not None:
                    held = self.holds.get(entry[0].block_id, position)
                    if held != position:
                        found.add((position, held))
        return sorted(found)
