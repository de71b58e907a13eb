"""Log-probabilities in the three shapes that clients know: chat, legacy completions, vLLM's prompt_logprobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from statemark.engine.request import TokenLogprobs
from statemark.server.served import ServedModel

Names = Callable[[int], str]

_LOWEST = -9999.0  # JSON has no -inf; this is what clients of OpenAI and vLLM expect in its place


def number(value: float) -> float:
    return value if math.isfinite(value) else _LOWEST


def token_names(model: ServedModel, *, as_ids: bool) -> Names:
    """What tokens are called: by their text, or by their id where two must not be taken for one."""
    return (lambda token_id: f"token_id:{token_id}") if as_ids else model.token_text


def chat_logprobs(model: ServedModel, named: Names, rows: Iterable[TokenLogprobs], top: int) -> dict[str, Any]:
    """OpenAI's chat shape: {"content": [{token, logprob, bytes, top_logprobs}]}."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": named(token_id),
            "logprob": number(logprob),
            "bytes": list(model.token_bytes(token_id)),
        }

    return {
        "content": [
            entry(row.token_id, row.logprob)
            | {"top_logprobs": [entry(*pair) for pair in zip(row.top_ids[:top], row.top_logprobs[:top], strict=True)]}
            for row in rows
        ],
        "refusal": None,
    }


def legacy_logprobs(
    named: Names, ids: Sequence[int], rows: Sequence[TokenLogprobs | None], top: int, offset: int
) -> dict[str, Any]:
    """The completions shape: four lists, one item a token. A row of None is the first prompt token's."""
    tokens = [named(token_id) for token_id in ids]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [None if row is None else number(row.logprob) for row in rows],
        "top_logprobs": [None if row is None else _legacy_top(named, row, top) for row in rows] if top else None,
        "text_offset": offsets,
    }


def _legacy_top(named: Names, row: TokenLogprobs, top: int) -> dict[str, float]:
    """The most likely tokens and the chosen one. Two ids with one text keep the likelier's number."""
    found: dict[str, float] = {}
    for token_id, logprob in zip(row.top_ids[:top], row.top_logprobs[:top], strict=True):
        found.setdefault(named(token_id), number(logprob))
    found.setdefault(named(row.token_id), number(row.logprob))
    return found


def prompt_logprobs(model: ServedModel, rows: Sequence[TokenLogprobs | None], top: int) -> list[dict[str, Any] | None]:
    """vLLM's shape: for each prompt token a map from token id to {logprob, rank, decoded_token}; None for the first."""

    def entry(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": number(logprob), "rank": rank, "decoded_token": model.token_text(token_id)}

    found: list[dict[str, Any] | None] = []
    for row in rows:
        if row is None:
            found.append(None)
            continue
        likely = zip(row.top_ids[:top], row.top_logprobs[:top], strict=True)
        entries = {str(i): entry(i, logprob, rank) for rank, (i, logprob) in enumerate(likely, 1)}
        entries.setdefault(str(row.token_id), entry(row.token_id, row.logprob, row.rank))
        found.append(entries)
    return found
