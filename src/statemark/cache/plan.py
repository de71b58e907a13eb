"""Where a prompt's marks shall lie: decided before prefill, so that no chunk has to be cut for them.

Owns positions and their kinds, in the order of their worth. Knows nothing of what is cached beside the two numbers
that it is given: where the prompt resumes and where it leaves a cached path.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from statemark.cache.digest import PAGE_TOKENS

NEAR_END = 256  # tokens before the prompt's end: reminders and tool notices that the next request changes
_NEARER = 64  # where there is room: a last line that changes
_END_REGION = (96, 512)  # a turn that lies this far before the end does as well
_AMPLE = 24  # marks a request
_FIRST = 512  # no history before this: computing so little again is cheap
_JUNCTION = PAGE_TOKENS  # tokens that a junction must save to be worth a mark
# Writing a 0.8B model's mark takes about as long as computing one or two tokens: at most one for 64 new ones keeps what
# a prompt pays for marks that nobody will use below 3 %. The first four are worth more than that.
_TOKENS_A_MARK = 64
_ALWAYS = 4


def history_spacing(page_bytes: int, slot_bytes: int) -> int:
    """Tokens between marks of history that cost as much as the pages between them."""
    return max(32, -(-slot_bytes // page_bytes)) * PAGE_TOKENS


def marks_of_prompt(
    prompt_tokens: int, turns: Iterable[int], cached: int, shared: int, *, most: int, spacing: int
) -> list[tuple[int, str]]:
    """The marks of a prompt that resumes at `cached` and has `shared` tokens in common with what is cached; `most` a
    request may have."""
    limit = min(most, max(_ALWAYS, (prompt_tokens - cached) // _TOKENS_A_MARK))
    junction = shared if shared - cached >= _JUNCTION else None
    return plan_marks(prompt_tokens, turns, cached, limit, junction=junction, spacing=spacing)


def plan_marks(
    prompt_tokens: int, turns: Iterable[int], start: int, limit: int, *, junction: int | None = None, spacing: int = 0
) -> list[tuple[int, str]]:
    """Positions (tokens consumed) to mark in a prompt that is computed from `start` on, ascending, with their kind.

    By falling worth, as far as `limit` allows:
    - replay: P - 1, so that the same prompt can be asked again for one token;
    - junction: where it leaves a cached path without a mark, to the token;
    - the last turn, before the generation header; system: the first one, which every conversation of an agent shares;
    - near end, unless a turn lies there;
    - turns whose positions double, then history in the gaps that are left: wherever the next request diverges, at most
      half of the shared span is lost;
    - a second near end, nearer, if there is ample room;
    - history every `spacing` tokens (0: none), then the latest turns.
    """
    replay = prompt_tokens - 1
    inside = sorted({p for p in turns if start < p < replay})
    first = min((p for p in turns if 0 < p < replay), default=0)
    chosen: dict[int, str] = {}

    def add(position: int, kind: str) -> None:
        if start < position <= replay and len(chosen) < limit:
            chosen.setdefault(position, kind)

    add(replay, "replay")
    if junction is not None and junction < replay:
        add(junction, "junction")
    if inside:
        add(inside[-1], "turn")
        if inside[0] == first and len(inside) > 1:
            add(first, "system")
    if not any(_END_REGION[0] <= prompt_tokens - p <= _END_REGION[1] for p in inside):
        add(prompt_tokens - NEAR_END, "near end")
    if inside:
        for position in reversed(_doubling(inside)):
            add(position, "turn")
    base = max(start, _FIRST // 2)
    for position in _gaps([base, *sorted(p for p in chosen if p > base)]):
        add(position, "history")
    if limit >= _AMPLE and prompt_tokens - start > 2 * _FIRST:
        add(prompt_tokens - _NEARER, "near end")
    if spacing:
        step = spacing * max(1, -(-(prompt_tokens - start) // (spacing * max(1, limit - len(chosen)))))
        kept = sorted({start, *chosen, *inside})
        for position in range((start // step + 1) * step, prompt_tokens - _FIRST, step):
            if _far(kept, position, step // 2):
                add(position, "history")
    for position in reversed(inside):
        add(position, "turn")
    return sorted(chosen.items())


def _doubling(positions: list[int]) -> list[int]:
    """A subset in which, for every cut above the first position, the deepest one below lies past half of the cut."""
    chosen = [positions[0]]
    for here, following in pairwise([*positions, 2 * positions[-1]]):
        if following > 2 * chosen[-1] and here > chosen[-1]:
            chosen.append(here)
    return chosen


def _gaps(marks: list[int]) -> list[int]:
    """Positions that cut every gap in which more than half could be lost, the deepest first."""
    found = []
    for low, high in pairwise(marks):
        position = 2 * low
        while position < high:
            found.append(position)
            position *= 2
    return sorted(found, reverse=True)


def _far(sorted_positions: list[int], position: int, distance: int) -> bool:
    i = bisect_left(sorted_positions, position)
    return all(abs(p - position) >= distance for p in sorted_positions[max(0, i - 1) : i + 1])
