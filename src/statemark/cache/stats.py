"""What the cache can hold, holds and has done, as typed numbers for reports and metrics. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statemark.cache.budget import Budget
from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.explain import WHY
from statemark.words import counted


@dataclass(frozen=True)
class Capacity:
    """What a budget holds at once with half of its bytes in pages and half in marks.

    Either kind may take the other's room, so there may be up to twice as many of one. `smallest_prefix`: the fewest
    tokens that can be reused; None if no mark fits beside the state and the page of a running request.
    """

    tokens: int
    marks: int
    smallest_prefix: int | None

    def __str__(self) -> str:
        if self.smallest_prefix is None:
            return "no room for a mark beside a running request: nothing can be reused"
        return (
            f"{counted(self.tokens, 'token')} of pages and {counted(self.marks, 'mark')}, "
            f"smallest reusable prefix {counted(self.smallest_prefix, 'token')}"
        )


def capacity(budget: Budget) -> Capacity:
    """Of marks, one at least is counted where it fits: a prefix of one token is a mark and a page."""
    page, slot = budget.pages.item_bytes, budget.slots.item_bytes
    half = budget.total // 2
    marks = max(half // slot, 1)
    tokens = max(min(half, budget.total - marks * slot), 0) // page * PAGE_TOKENS
    return Capacity(tokens, marks, 1 if budget.total >= 2 * (slot + page) else None)


@dataclass(frozen=True, kw_only=True)
class CacheStats:
    """Bytes in bytes, tokens in tokens; counters since the start.

    `lookups` of prompts with `tokens_asked`, of which `tokens_reused` were not computed again; `tokens_lost`: tokens
    that were cached and had to be computed again for want of a mark, by the reasons of `explain.WHY`.
    """

    bytes_total: int
    bytes_used: int
    bytes_per_token: float
    bytes_per_mark: int
    pages: int
    marks: int
    lookups: int
    tokens_asked: int
    tokens_reused: int
    tokens_lost: Mapping[str, int]
    marks_published: int
    marks_evicted: int
    marks_without_room: int
    marks_discarded: int
    integrity_errors: int


def cache_stats(budget: Budget, marks: int, counters: Mapping[str, int]) -> CacheStats:
    """From what the manager counts; whatever has not happened yet is 0."""
    names = (
        "lookups", "tokens_asked", "tokens_reused", "marks_published", "marks_evicted", "marks_without_room",
        "marks_discarded", "integrity_errors",
    )  # fmt: skip
    return CacheStats(
        bytes_total=budget.total,
        bytes_used=budget.used_bytes,
        bytes_per_token=budget.pages.item_bytes / PAGE_TOKENS,
        bytes_per_mark=budget.slots.item_bytes,
        pages=budget.pages.used,
        marks=marks,
        tokens_lost={reason: counters.get(f"tokens_lost_{reason}", 0) for reason in WHY},
        **{name: counters.get(name, 0) for name in names},
    )
