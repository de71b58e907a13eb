"""The flags of `vllm serve` that shape the prefix cache, parsed from a command line as it was pasted.

Knows flags and their contradictions with each other; not models, nor what the flags resolve to.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from statemark.align.command_line import CommandLine
from statemark.errors import ConfigurationError

_KV_DTYPES = """
    auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc
    turboquant_k3v4_nc turboquant_3bit_nc ultraquant_4bit int4_per_token_head int8_per_token_head fp8_per_token_head
    nvfp4 nvfp4_4over6
"""
KV_DTYPES = tuple(_KV_DTYPES.split())
STATE_DTYPES = ("auto", "bfloat16", "float16", "float32")
MODEL_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")


@dataclass(frozen=True)
class SpeculativeFlags:
    """What the flags say of drafting."""

    method: str | None = None
    depth: int | None = None
    model: str | None = None
    disable_block_drop: bool = False
    parallel_drafting: bool = False
    attention_backend: str | None = None
    draft_ranks: int | None = None


@dataclass(frozen=True)
class ServeFlags:
    """The flags that matter here, with None where the flag was absent."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    decode_context_parallel: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    kv_skip_layers: tuple[str, ...] = ()
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    mamba_block_size: int | None = None
    mamba_cache_mode: str | None = None
    block_size: int | None = None
    prefix_match_unit: int | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    chunked_media: bool = True
    retention_interval: int | None = 0
    junction_checkpoint: bool = False
    replay_ssm: bool = False
    max_num_batched_tokens: int | None = None
    max_num_scheduled_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    long_prefill_threshold: int = 0
    long_prefill_adaptive: bool = False
    attention_backend: str | None = None
    mamba_backend: str | None = None
    performance_mode: str = "balanced"
    text_only: bool = False
    kv_connector: bool = False
    one_cache_manager: bool = False
    scheduler_class: str | None = None
    memory_utilization: float = 0.92
    kv_cache_bytes: int | None = None
    blocks_override: int | None = None
    speculative: SpeculativeFlags | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


def parse_serve_flags(arguments: Sequence[str]) -> tuple[str | None, ServeFlags]:
    """(model, flags) of a command line of `vllm serve`, with or without those two words in front."""
    words = [*arguments]
    if len(words) == 1 and " " in words[0]:
        words = shlex.split(words[0])  # the whole command pasted as one quoted argument
    words = [w for w in words if w.strip() not in ("", "\\")]
    if words[:2] == ["vllm", "serve"]:
        words = words[2:]
    raw = CommandLine(words)
    model = raw.model()
    flags = _build(raw)
    _check(flags, raw)
    return model, flags


def _build(raw: CommandLine) -> ServeFlags:
    attention = raw.document("attention-config")
    length = raw.optional("max-model-len")
    return ServeFlags(
        tensor_parallel=raw.integer("tensor-parallel-size", default=1) or 1,
        pipeline_parallel=raw.integer("pipeline-parallel-size", default=1) or 1,
        decode_context_parallel=raw.integer("decode-context-parallel-size", default=1) or 1,
        dtype=raw.text("dtype", "auto", MODEL_DTYPES),
        kv_cache_dtype=raw.text("kv-cache-dtype", "auto", KV_DTYPES),
        kv_skip_layers=tuple(raw.values.get("kv-cache-dtype-skip-layers", ())),
        mamba_cache_dtype=raw.text("mamba-cache-dtype", "auto", STATE_DTYPES),
        mamba_ssm_cache_dtype=raw.text("mamba-ssm-cache-dtype", "auto", STATE_DTYPES),
        mamba_block_size=raw.integer("mamba-block-size"),
        mamba_cache_mode=raw.text("mamba-cache-mode", "", ("align", "none")) or None,
        block_size=raw.integer("block-size"),
        prefix_match_unit=raw.integer("prefix-match-unit"),
        prefix_caching=raw.switch("enable-prefix-caching"),
        chunked_prefill=raw.switch("enable-chunked-prefill"),
        chunked_media=not raw.switch("disable-chunked-mm-input"),
        retention_interval=_retention(raw),
        junction_checkpoint=bool(raw.switch("enable-mamba-shared-prefix-checkpoint")),
        replay_ssm=bool(raw.switch("use-replayssm")),
        max_num_batched_tokens=raw.integer("max-num-batched-tokens"),
        max_num_scheduled_tokens=raw.integer("max-num-scheduled-tokens"),
        max_num_seqs=raw.integer("max-num-seqs"),
        max_model_len=None if length in (None, "auto", "-1") else raw.integer("max-model-len"),
        long_prefill_threshold=raw.integer("long-prefill-token-threshold", low=0, default=0) or 0,
        long_prefill_adaptive=bool(raw.switch("long-prefill-token-threshold-adaptive")),
        attention_backend=raw.optional("attention-backend") or attention.get("backend"),
        mamba_backend=raw.optional("mamba-backend"),
        performance_mode=raw.text("performance-mode", "balanced", ("balanced", "interactivity", "throughput")),
        text_only=bool(raw.switch("language-model-only")),
        kv_connector=bool(raw.document("kv-transfer-config")) or raw.optional("kv-offloading-size") is not None,
        one_cache_manager=bool(raw.switch("disable-hybrid-kv-cache-manager")),
        scheduler_class=raw.optional("scheduler-cls"),
        memory_utilization=raw.number("gpu-memory-utilization", raw.number("device-memory-utilization", 0.92)),
        kv_cache_bytes=raw.integer("kv-cache-memory-bytes"),
        blocks_override=raw.integer("num-gpu-blocks-override"),
        speculative=_speculative(raw),
        overrides=raw.document("hf-overrides"),
    )


def _retention(raw: CommandLine) -> int | None:
    """0 is vLLM's default (only where a replay or a sibling can resume); None keeps every boundary."""
    name = "prefix-cache-retention-interval"
    if name not in raw.values:
        return 0
    return raw.integer(name, low=0)


def _speculative(raw: CommandLine) -> SpeculativeFlags | None:
    settings = raw.document("speculative-config")
    for flag, key in (("spec-method", "method"), ("spec-model", "model"), ("spec-tokens", "num_speculative_tokens")):
        value: Any = raw.integer(flag) if flag == "spec-tokens" else raw.optional(flag)
        if value is None:
            continue
        if key in settings and settings[key] != value:
            raise ConfigurationError(f"--{flag} {value} contradicts --speculative-config's {key} {settings[key]}")
        settings[key] = value
    if not settings:
        return None
    depth = settings.get("num_speculative_tokens")
    if depth is not None and (not isinstance(depth, int) or isinstance(depth, bool) or depth < 1):
        raise ConfigurationError(f"--speculative-config: num_speculative_tokens must be at least 1, got {depth!r}")
    return SpeculativeFlags(
        method=settings.get("method"),
        depth=depth,
        model=settings.get("model"),
        disable_block_drop=bool(settings.get("disable_eagle_block_drop", False)),
        parallel_drafting=bool(settings.get("parallel_drafting", False)),
        attention_backend=settings.get("attention_backend"),
        draft_ranks=settings.get("draft_tensor_parallel_size"),
    )


def _check(flags: ServeFlags, raw: CommandLine) -> None:
    """Flags that contradict each other whatever the model is."""
    if "config" in raw.values:
        raise ConfigurationError(
            f"--config {raw.values['config'][0]} is not read here", hint="paste the flags that the file holds"
        )
    if flags.prefix_caching is False:
        for name in ("prefix-match-unit", "mamba-block-size"):
            if name in raw.values:
                raise ConfigurationError(
                    f"--{name} needs the prefix cache, which --no-enable-prefix-caching turns off",
                    hint="remove one of the two",
                )
        if flags.mamba_cache_mode == "align":
            raise ConfigurationError(
                "--mamba-cache-mode align contradicts --no-enable-prefix-caching", hint="remove one of the two"
            )
    else:
        if flags.chunked_prefill is False:
            raise ConfigurationError(
                "--no-enable-chunked-prefill: align mode can't work without chunked prefill, vLLM refuses to start",
                hint="remove it, or turn the prefix cache off with --no-enable-prefix-caching",
            )
        if not flags.chunked_media:
            raise ConfigurationError(
                "--disable-chunked-mm-input: in align mode chunks must be free to end inside an image, vLLM refuses",
                hint="remove it, or turn the prefix cache off with --no-enable-prefix-caching",
            )
    limit, total = flags.max_num_scheduled_tokens, flags.max_num_batched_tokens
    if limit is not None and total is not None and limit > total:
        raise ConfigurationError(
            f"--max-num-scheduled-tokens {limit} is above --max-num-batched-tokens {total}", hint="lower the first"
        )
