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

from tests.align.tiny_models import CASES, qwen3


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
    cached: dict[str, int] = field(default_factory=dict)

    @classmethod
    def build(cls, scheduler_class: str | None, specs: list[Any], budget: int, *, drafter: str | None = None) -> Bare:
        """`drafter` is a draft model of its own, or the model's "mtp" module."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.core.kv_cache_utils import init_none_hash, resolve_kv_cache_block_sizes
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        init_none_hash(_hash)
        with tempfile.TemporaryDirectory() as folder:
            case = "qwen3.5-mtp" if drafter == "mtp" else "qwen3-next"
            Path(folder, "config.json").write_text(json.dumps(CASES[case][0]))
            own = Path(folder, "drafter")
            own.mkdir()
            (own / "config.json").write_text(json.dumps(qwen3()))
            drafts = {"method": drafter, "num_speculative_tokens": 3} | (
                {} if drafter == "mtp" else {"model": str(own)}
            )
            config = EngineArgs(
                model=folder,
                skip_tokenizer_init=True,
                max_model_len=16384,
                max_num_batched_tokens=budget,
                max_num_seqs=16,
                enable_prefix_caching=True,
                speculative_config=drafts if drafter else None,
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

    def add(self, name: str, tokens: list[int], outputs: int = 1) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        ahead = getattr(self.scheduler, "num_hash_lookahead_tokens", 0)  # since 0.33
        hasher = get_request_block_hasher(self.scheduler.hash_block_size, _hash, *([ahead] if ahead else []))
        sampling = SamplingParams(max_tokens=outputs, ignore_eos=True)
        self.requests[name] = Request(name, tokens, sampling, None, block_hasher=hasher)
        self.scheduler.add_request(self.requests[name])

    def step(self) -> Any:
        """One step: what was scheduled. Every request whose prompt is through gets a token."""
        from vllm.v1.outputs import ModelRunnerOutput

        output = self.scheduler.schedule()
        for new in output.scheduled_new_reqs:
            self.cached[new.req_id] = new.num_computed_tokens
        ids = list(output.num_scheduled_tokens)
        for name in ids:
            self._forward(name)
        done = [self.requests[n].num_computed_tokens >= self.requests[n].num_tokens for n in ids]
        answer = ModelRunnerOutput(
            ids, {n: i for i, n in enumerate(ids)}, sampled_token_ids=[[7] if d else [] for d in done]
        )
        self.scheduler.update_from_output(output, answer)
        return output

    def ask(self, name: str, tokens: list[int]) -> int:
        """One request until its first token; how many tokens it reused."""
        self.add(name, tokens)
        for _ in range(400):
            if name not in self.scheduler.requests:
                break
            self.step()
        self.step()  # blocks of the finished request are let go in the next step
        return int(self.cached[name])

    def company(self, tokens: list[int], decoding: int = 8) -> dict[str, Any]:
        """A long prompt with a short one behind it, beside requests that decode: steps until each is through (None:
        never), and how many steps passed without a token for the long one."""
        for n in range(decoding):
            self.add(f"decoding {n}", [n + 2] * 12, outputs=300)
        for _ in range(decoding + 4):
            self.step()
        self.add("long", tokens)
        self.add("short", tokens[:20:-1][:20])
        through: dict[str, int] = {}
        without = 0
        for number in range(1, 61):
            output = self.step()
            without += "long" in self.scheduler.requests and "long" not in output.num_scheduled_tokens
            for name in ("long", "short"):
                if name not in self.scheduler.requests:
                    through.setdefault(name, number)
        return {"long": through.get("long"), "short": through.get("short"), "without": without}

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
