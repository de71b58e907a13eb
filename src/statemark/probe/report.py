"""A probe's result as lines for a person and as one JSON object. Draws nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from statemark.probe.bench import Cost
from statemark.probe.judge import WORDS, Observation, Scale
from statemark.probe.run import Result

_VERDICTS = {
    "exact": "EXACT: no answer depended on the cache, on company or on where the prompt was cut",
    "drift": "DRIFT: answers move a little; the cache hands out the right states",
    "contaminated": "CONTAMINATED: answers depend on what the cache handed out, or on who asked before",
    "invalid": "INVALID: the probe can't tell; this is no clean bill",
}


def figures(result: Result) -> dict[str, Any]:
    return {
        "server": result.server,
        "abilities": result.abilities,
        "options": result.options.figures(),
        "verdict": result.verdict.kind,
        "reasons": list(result.verdict.reasons),
        "cells_that_show_it": list(result.verdict.cells),
        "largest_shift": result.verdict.largest,
        "control_shift": result.verdict.control,
        "edit_shifts": [{"tokens_behind": behind, "shift": shift} for behind, shift in result.scale.edits],
        "foreign_shift": result.scale.foreign,
        "block_tokens": result.grid,
        "boundary": result.boundary,
        "forced_beyond_end_of_turn": result.options.beyond_eos,
        "notes": result.notes,
        "estimated": result.expected.figures(),
        "cost": result.cost.figures(),
        "observations": [o.figures() for o in result.observations],
    }


def grid_words(grid: int | None) -> str:
    if grid is None:
        return "unknown: nothing was reused"
    return "none: hits end at any token" if grid == 1 else f"{grid:,} tokens: every hit was a multiple of it"


def boundary_words(boundary: dict[str, Any]) -> str:
    what = "shared tokens" if boundary["cell"] == "boundary" else "tokens of a prompt that is asked again"
    text = f"nothing wrong up to {boundary['right_up_to']:,} {what}, wrong from {boundary['wrong_from']:,} on"
    if boundary["block"] > 1:
        text += f" = {boundary['blocks']:g} x {boundary['block']:,}"
    return text


def scale_words(scale: Scale) -> str:
    if not scale.edits:
        return "an unknown amount"
    sizes, behind = (", ".join(column) for column in zip(*((f"{s:.2g}", f"{b}") for b, s in scale.edits), strict=True))
    return f"{sizes} where {behind} tokens stand behind it"


def ability_words(abilities: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in abilities.items())


def cost_words(cost: Cost, expected: Cost) -> str:
    return (
        f"{cost.requests} requests, {cost.prompt_tokens:,} prompt tokens (estimated {expected.prompt_tokens:,}), "
        f"{cost.completion_tokens:,} generated, {cost.seconds:.0f} s (estimated {expected.seconds:.0f})"
    )


def verdict_words(kind: str) -> str:
    return _VERDICTS[kind]


def lines(result: Result) -> Iterator[str]:
    verdict = result.verdict
    yield f"server    {result.server['name']} at {result.server['url']}, model {result.server['model']}"
    yield f"asks      {ability_words(result.abilities)}"
    yield f"blocks    {grid_words(result.grid)}"
    yield (
        f"scale     editing one token moves log-probabilities by {scale_words(result.scale)}; "
        f"another document by {result.scale.foreign:.3g}"
    )
    yield ""
    yield f"{'cell':10}{'requests':>9}{'hits':>6}{'invalid':>9}{'equal':>7}{'largest shift':>15}{'first':>7}{'text':>6}"
    for cell in WORDS:
        found = [o for o in result.observations if o.cell == cell]
        if found:
            yield _row(cell, found)
    yield ""
    yield verdict_words(verdict.kind)
    for reason in verdict.reasons:
        yield f"  - {reason}"
    if result.boundary is not None:
        yield f"  - {boundary_words(result.boundary)}"
    if result.options.beyond_eos:
        yield "  - answers were forced beyond their end of turn: sizes say nothing about what users see"
    for note in result.notes:
        yield f"  note: {note}"
    yield f"cost      {cost_words(result.cost, result.expected)}"


def _row(cell: str, found: list[Observation]) -> str:
    valid = [o for o in found if o.valid]
    moved = [o for o in valid if not o.shift.exact]
    worst = max(moved, key=lambda o: o.shift.size, default=None)
    size = f"{worst.shift.size:.3g}" if worst else "-"
    first = str(min(o.shift.first or 0 for o in moved)) if moved else "-"
    text = "moves" if any(o.shift.text is not None for o in moved) else "-"
    hits = sum(1 for o in found if o.cached)
    return (
        f"{cell:10}{len(found):>9}{hits:>6}{len(found) - len(valid):>9}{len(valid) - len(moved):>7}"
        f"{size:>15}{first:>7}{text:>6}"
    )
