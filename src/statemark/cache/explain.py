"""What a lookup found, in numbers and in a sentence: how far pages match, how far a state does, what stood between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.index import Lookup

EVICTED, NO_ROOM, DAMAGED, UNMARKED = "evicted", "no_room", "damaged", "unmarked"
WHY = {
    EVICTED: "a mark between them was evicted",
    NO_ROOM: "a mark between them was planned, and there was no room for it",
    DAMAGED: "a mark between them was damaged",
    UNMARKED: "no mark was planned between them",
}
"""Why tokens that are cached have to be computed again, by the names that the counters use."""


@dataclass(frozen=True)
class Explanation:
    """A lookup of a prompt of `prompt_tokens`.

    `page_match`: tokens in whole cached pages that agree; `shared`: tokens that agree, to the token; `reused`: the
    longest joint match, tokens up to the deepest mark at or below them. `first_different`: the first token that no
    cached prefix has, None if the cache has the whole prompt; `turn`: how many message ends lie at or before it;
    `role`: the role of the message that it is in, None where that isn't known. `veto`: why less was reused than is
    shared, a name of `WHY`, or None if nothing was lost.
    """

    prompt_tokens: int
    page_match: int
    shared: int
    reused: int
    first_different: int | None
    turn: int
    role: str | None
    veto: str | None

    @property
    def lost(self) -> int:
        """Tokens that are cached but had to be computed again for want of a state. The last one always has to be."""
        return max(0, min(self.shared, self.prompt_tokens - 1) - self.reused)

    def __str__(self) -> str:
        place = f"turn {self.turn}" + (f", {self.role}" if self.role is not None else "")
        at = "" if self.first_different is None else f", token {self.first_different} ({place}) is new"
        why = f"; {self.lost} tokens lost: {WHY[self.veto]}" if self.veto is not None else ""
        return f"{self.reused} of {self.prompt_tokens} prompt tokens reused; {self.shared} are cached{at}{why}"


def explain(found: Lookup, prompt_tokens: int, turns: Sequence[int] = (), roles: Sequence[str] = ()) -> Explanation:
    """What `found` says about the prompt that was looked up.

    `turns`: where its messages end, ascending; `roles`: whose text begins at 0 and at each of them, or nothing.
    """
    turn = bisect_right(turns, found.shared)
    new = found.shared < prompt_tokens
    return Explanation(
        prompt_tokens=prompt_tokens,
        page_match=found.page_match,
        shared=found.shared,
        reused=found.position,
        first_different=found.shared if new else None,
        turn=turn,
        role=roles[turn] if new and len(roles) == len(turns) + 1 else None,
        veto=_veto(found) if min(found.shared, prompt_tokens - 1) > found.position else None,
    )


def _veto(found: Lookup) -> str:
    """What happened to the deepest mark that was meant to lie between what is reused and what is shared."""
    passed = found.path[found.position // PAGE_TOKENS :]
    return next((node.missing for node in reversed(passed) if node.missing is not None), UNMARKED)
