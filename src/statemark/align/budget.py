"""How many tokens a step may hold, and how many requests: flags, or vLLM 0.32's defaults for the platform.

Knows flags and platforms; nothing of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from statemark.align.flags import ServeFlags
from statemark.align.platforms import Platform, Usage, default_budget
from statemark.errors import ConfigurationError


@dataclass(frozen=True)
class Budget:
    """`tokens` is max_num_batched_tokens, `scheduled` max_num_scheduled_tokens, `requests` max_num_seqs."""

    tokens: int
    scheduled: int
    requests: int
    long_prefill_threshold: int = 0
    defaulted: bool = False


def resolve_budget(
    flags: ServeFlags, machine: Platform, usage: Usage, max_model_len: int, draft_slots: int = 0
) -> Budget:
    """Fill in what the flags leave out, in vLLM's order, and refuse what vLLM refuses."""
    ranks = flags.tensor_parallel * flags.pipeline_parallel
    tokens, requests = default_budget(machine, usage, ranks)
    if flags.performance_mode == "throughput":
        tokens, requests = 2 * tokens, 2 * requests
    if flags.max_num_seqs is not None:
        requests = flags.max_num_seqs
    if flags.max_num_batched_tokens is not None:
        tokens = flags.max_num_batched_tokens
    else:
        if flags.chunked_prefill is False:
            tokens = max(tokens, max_model_len)
        tokens = min(tokens, requests * max_model_len)
    if flags.max_num_seqs is None:
        requests = min(requests, tokens)
    scheduled = flags.max_num_scheduled_tokens or tokens
    if tokens < requests:
        raise ConfigurationError(
            f"max_num_batched_tokens ({tokens}) is below max_num_seqs ({requests}): vLLM refuses to start",
            hint="raise --max-num-batched-tokens or lower --max-num-seqs",
        )
    if tokens <= draft_slots:
        raise ConfigurationError(
            f"max_num_batched_tokens ({tokens}) doesn't exceed the {draft_slots} draft slots of one request",
            hint="raise --max-num-batched-tokens",
        )
    return Budget(
        tokens=tokens,
        scheduled=min(scheduled, tokens),
        requests=requests,
        long_prefill_threshold=flags.long_prefill_threshold,
        defaulted=flags.max_num_batched_tokens is None,
    )
