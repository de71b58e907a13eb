"""The rest of a resolved engine for `align`: model shape, flags and budget, from vLLM's config objects.

Findings read these. Knows vLLM's attributes by name; not its cache groups.
"""

from __future__ import annotations

from typing import Any

from statemark.align.budget import Budget
from statemark.align.families import read_model
from statemark.align.flags import ServeFlags
from statemark.align.platforms import DEFAULT, Platform, platform
from statemark.align.shape import AttentionShape, ModelShape
from statemark.align.units import KernelChunk
from statemark.errors import StatemarkError

# Every recurrent kernel that vLLM ships takes its tokens by a power of two up to this. A multiple is safe for all.
_LARGEST_CHUNK = 256


def shape_of(config: Any) -> ModelShape:
    """The model's shape from its own config, or a bare one where `align` doesn't know the family."""
    hf_config = config.model_config.hf_config
    try:
        return read_model(hf_config.to_dict(), "the model's config")
    except (StatemarkError, AttributeError):
        name = next(iter(getattr(hf_config, "architectures", None) or ["a model that align doesn't know"]))
        return ModelShape(
            family=name,
            architecture=name,
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            max_model_len=config.model_config.max_model_len,
            attention=AttentionShape(kv_heads=1, head_dim=1),
            attention_layers=1,
            query_heads=1,
            hidden_size=1,
            recurrent=(),
            kernel_chunk=KernelChunk(_LARGEST_CHUNK),
        )


def budget_of(scheduler: Any) -> Budget:
    settings = scheduler.scheduler_config
    return Budget(
        tokens=settings.max_num_batched_tokens,
        scheduled=scheduler.max_num_scheduled_tokens,
        requests=scheduler.max_num_running_reqs,
        long_prefill_threshold=settings.long_prefill_token_threshold,
    )


def flags_of(scheduler: Any) -> ServeFlags:
    """The flags that findings look at, as they were resolved."""
    config, cache, settings = scheduler.vllm_config, scheduler.cache_config, scheduler.scheduler_config
    media = getattr(config.model_config, "multimodal_config", None)
    return ServeFlags(
        tensor_parallel=config.parallel_config.tensor_parallel_size,
        pipeline_parallel=config.parallel_config.pipeline_parallel_size,
        prefix_match_unit=cache.prefix_match_unit,
        prefix_caching=cache.enable_prefix_caching,
        mamba_cache_mode=cache.mamba_cache_mode,
        retention_interval=scheduler.kv_cache_config.prefix_cache_retention_interval,
        junction_checkpoint=cache.enable_mamba_shared_prefix_checkpoint,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_running_reqs,
        max_model_len=scheduler.max_model_len,
        long_prefill_threshold=settings.long_prefill_token_threshold,
        text_only=bool(getattr(media, "language_model_only", False)) or not scheduler.max_num_encoder_input_tokens,
        kv_connector=scheduler.connector is not None,
        blocks_override=scheduler.kv_cache_config.num_blocks,
    )


def machine_of(config: Any) -> Platform:
    """Findings ask for the kind alone: whether it is a CPU."""
    return platform("cpu") if config.device_config.device_type == "cpu" else DEFAULT
