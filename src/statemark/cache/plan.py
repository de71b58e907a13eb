"""Where a prompt's marks shall lie: decided before prefill, so that no chunk has to be cut for them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise


def plan_marks(prompt_tokens: int, turns: Iterable[int], start: int, limit: int) -> list[tuple[int, str]]:
    """Positions (tokens consumed) to mark in a prompt that is computed from `start` on, ascending, with their kind.

    `replay` (P - 1) lets the same prompt be asked again for one token; it comes first when `limit` is small. `turn`
    positions are ends of chat messages; when they are too many, the last one, the first one (after system and tools,
    shared by every conversation of an agent), ones whose positions double, and then the latest ones stay: wherever the
    next request diverges, at most half of the shared span is lost, as far as messages end there and room allows.
    """
    replay = prompt_tokens - 1
    if limit < 1:
        return []
    inside = sorted({p for p in turns if start < p < replay})
    marks = [(p, "turn") for p in _thin(inside, limit - 1)]
    if replay > start:
        marks.append((replay, "replay"))
    return marks


def _thin(positions: list[int], room: int) -> list[int]:
    if len(positions) <= room:
        return positions
    kept: set[int] = set()
    for p in [positions[-1], positions[0], *reversed(_doubling(positions)), *reversed(positions)]:
        if len(kept) >= room:
            break
        kept.add(p)
    return sorted(kept)


def _doubling(positions: list[int]) -> list[int]:
    """A subset in which, for every cut above the first position, the deepest one below lies past half of the cut."""
    chosen = [positions[0]]
    for here, following in pairwise([*positions, 2 * positions[-1]]):
        if following > 2 * chosen[-1] and here > chosen[-1]:
            chosen.append(here)
    return chosen
