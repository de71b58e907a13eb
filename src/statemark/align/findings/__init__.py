"""Findings: what an operator should know of a configuration before a server runs with it.

Each rule looks at one configuration and says nothing, or one thing: a code, a sentence, numbers, the flag to change.
"""

from __future__ import annotations

from collections.abc import Callable

from statemark.align.configuration import Setup
from statemark.align.findings import budget, correctness, drafting, reach, silence
from statemark.align.findings.kind import Finding, Level

FindingRule = Callable[[Setup], Finding | None]

RULES: tuple[FindingRule, ...] = (
    silence.gone,
    silence.cache_off,
    correctness.wrong_grid,
    correctness.stale_checkpoint,
    correctness.uneven_chunks,
    correctness.match_unit_off_kernel,
    budget.stalled_prompt,
    budget.stalled_by_modules,
    budget.head_of_line,
    budget.idle_budget,
    budget.encoder_limits,
    reach.inert,
    reach.minimum_prefix,
    reach.hit_unit_above_grid,
    reach.interval_without_stops,
    reach.match_unit_disabled,
    reach.few_states,
    drafting.back_off_without_need,
    drafting.drafter_unknown,
    silence.ignored_flags,
)


# What another cut than vLLM's own leaves no reason for.
_BY_ANY_RULE = frozenset(
    {
        "wrong-grid",
        "stale-checkpoint",
        "stalled-prompt",
        "stalled-by-modules",
        "head-of-line",
        "idle-budget",
        "hit-unit-above-grid",
        "interval-without-stops",
    }
)
_SETTLED: dict[str, frozenset[str]] = {"fast": _BY_ANY_RULE, "exact": _BY_ANY_RULE | {"uneven-chunks"}}


def settled_by(rule: str | None) -> frozenset[str]:
    """Codes of the findings that a server has no more that cuts by this chunk rule: they are about vLLM's own cut."""
    return _SETTLED.get(rule or "", frozenset())


def find(setup: Setup) -> tuple[Finding, ...]:
    """All findings, worst first; equal levels in the order above."""
    found = [f for rule in RULES if (f := rule(setup)) is not None]
    return tuple(sorted(found, key=lambda f: -f.level.rank))


__all__ = ["RULES", "Finding", "Level", "find", "settled_by"]
