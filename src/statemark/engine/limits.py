"""What an engine can be asked for: options, length of a sequence, a request. Owns the words for what doesn't fit."""

from __future__ import annotations

from statemark.cache import PAGE_TOKENS
from statemark.engine.drafts import MOST_DRAFTS
from statemark.engine.executor import Executor
from statemark.engine.request import EngineRequest
from statemark.errors import ConfigurationError, InvalidRequestError, PromptTooLongError


def check_options(
    max_num_batched_tokens: int, max_num_seqs: int, cache_bytes: int, num_speculative_tokens: int
) -> None:
    """ConfigurationError for what no engine could work with."""
    for name, value in (
        ("max_num_batched_tokens", max_num_batched_tokens),
        ("max_num_seqs", max_num_seqs),
        ("cache_memory", cache_bytes),
    ):
        if value < 1:
            raise ConfigurationError(f"{name} must be at least 1, got {value}", hint=f"give a positive {name}")
    if not 0 <= num_speculative_tokens <= MOST_DRAFTS:
        raise ConfigurationError(
            f"num_speculative_tokens must be from 0 to {MOST_DRAFTS}, got {num_speculative_tokens}",
            hint="0 turns drafting off; a few are right often enough, many seldom are",
        )
    if max_num_batched_tokens < max_num_seqs:
        raise ConfigurationError(
            f"max_num_batched_tokens {max_num_batched_tokens} is below max_num_seqs {max_num_seqs}",
            hint="every running request takes at least one token a step: raise the first or lower the second",
        )


def check_request(request: EngineRequest, vocab_size: int, max_model_len: int) -> None:
    """InvalidRequestError for what this model can't answer."""
    ids = request.prompt_token_ids
    if request.adapter:
        raise InvalidRequestError(
            f"adapter {request.adapter!r} is not loaded: this engine runs the base model alone", param="adapter"
        )
    if not ids:
        raise InvalidRequestError("the prompt is empty", hint="give at least one token", param="prompt")
    if len(ids) >= max_model_len:
        hint = "shorten the prompt, or raise max_model_len or cache_memory"
        raise PromptTooLongError(len(ids), max_model_len, hint=hint)
    low, high = min(ids), max(ids)
    if low < 0 or high >= vocab_size:
        raise InvalidRequestError(
            f"token id {low if low < 0 else high} is outside 0 to {vocab_size - 1}", param="prompt"
        )
    params = request.params
    for name, given in (("logit_bias", params.logit_bias or ()), ("stop_token_ids", params.stop_token_ids)):
        bad = [t for t in given if t >= vocab_size]
        if bad:
            raise InvalidRequestError(f"{name}: token id {bad[0]} is outside 0 to {vocab_size - 1}", param=name)


def fit_length(executor: Executor, cache_bytes: int, wanted: int | None, notices: list[str]) -> int:
    """The longest sequence in tokens that the cache can hold alone, at most what the model allows.

    ConfigurationError if it can't hold what was asked for, or nothing; a limit below the model's is told in `notices`.
    """
    page, slot = executor.page_bytes, executor.slot_bytes
    room = max(0, cache_bytes - slot) // page * PAGE_TOKENS
    longest = executor.max_model_len
    if wanted is not None and not 2 <= wanted <= longest:
        raise ConfigurationError(
            f"max_model_len {wanted} is outside 2 to {longest}, the model's limit", hint=f"at most {longest}"
        )
    need = wanted or longest
    if room >= need:
        return need
    needed = slot + -(-need // PAGE_TOKENS) * page
    if wanted is not None or room < PAGE_TOKENS:
        hint = f"raise cache_memory to at least {needed:,}"
        if wanted is None:
            hint += f" for the model's {need:,} tokens; {slot + page:,} is the least, for {PAGE_TOKENS}"
        elif room >= PAGE_TOKENS:
            hint += f", or lower max_model_len to {room:,}"
        raise ConfigurationError(
            f"cache memory of {cache_bytes:,} bytes is too small for one request of {need:,} tokens: it takes "
            f"{needed:,} bytes ({slot:,} for its state and {page:,} for every {PAGE_TOKENS} tokens)",
            hint=hint,
        )
    notices.append(
        f"max_model_len is {room:,} instead of the model's {longest:,}: cache memory of {cache_bytes:,} bytes "
        f"holds no more; {needed:,} would"
    )
    return room
