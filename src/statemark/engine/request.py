"""A request as the engine holds it, and what the engine says about it after each step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from statemark.cache import Explanation
from statemark.engine.params import SamplingParams

if TYPE_CHECKING:
    from statemark.engine.structured import Constraint


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """What a front end hands to `Engine.add_request`.

    `prompt_token_ids`: 1 to max_model_len - 1 ids, each in [0, vocab_size).
    `turn_positions`: token counts p (0 < p < P) at which a chat message ends as rendered; wanted as marks.
    `turn_roles`: whose text begins at 0 and at each of them, for explanations; empty if nobody knows.
    `eos_token_ids`: ids that end the answer unless `params.ignore_eos`.
    `cache_salt`: requests with different salts share nothing. `adapter`: what changes the weights, "" for nothing; part
    of every cached prefix's name.
    `use_cache`: False neither reads nor writes the prefix cache.
    `constraint`: the grammar that answers follow, from behind the first token `free_until` on if there is one.
    `priority`: who waits goes in the order of this number, the smallest first, and of arrival among equals.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    eos_token_ids: frozenset[int] = frozenset()
    turn_positions: tuple[int, ...] = ()
    turn_roles: tuple[str, ...] = ()
    cache_salt: str = ""
    adapter: str = ""
    use_cache: bool = True
    priority: int = 0
    constraint: Constraint | None = None
    free_until: int | None = None


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (natural log, float32) at one position: the chosen token's and the most likely ones'.

    `top_ids` and `top_logprobs` are in descending order, ties by lower id; `rank` counts from 1.
    """

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


@dataclass
class StepOutput:
    """News of one request after one engine step.

    `index` is the choice (0 to n-1). `finish_reason` is None while it runs, then "stop" (an eos or stop id,
    named by `stop_token_id`, or `Engine.finish`), "length", "abort" or "error" (with `error` as the reason). `lookup`,
    with the first token, says what the prefix cache had for the prompt; None where it wasn't asked. `begun` is when the
    choice's first step began, on the clock of `time.perf_counter`.
    """

    request_id: str
    index: int
    new_token_ids: list[int] = field(default_factory=list)
    new_logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    lookup: Explanation | None = None
    begun: float | None = None
    finish_reason: str | None = None
    stop_token_id: int | None = None
    error: str | None = None
