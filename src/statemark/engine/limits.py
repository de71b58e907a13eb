"""How long a sequence may be, from the model and from the bytes of the cache; owns the words for what doesn't fit."""

from __future__ import annotations

from statemark.cache import PAGE_TOKENS
from statemark.engine.executor import Executor
from statemark.errors import ConfigurationError


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
