"""What a lookup found, in numbers and in a sentence: how far pages match, how far a state does, what stood between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from statemark.cache.digest import PAGE_TOKENS
from statemark.cache.index import Lookup

_WHY = {
    "evicted": "a mark between them was evicted",
    "unmarked": "no mark was made between them",
}


@dataclass(frozen=True)
class Explanation:
    """A lookup of a prompt of `prompt_tokens`.

    `page_match`: tokens in whole cached pages that agree; `shared`: tokens that agree, to the token; `reused`: tokens
    up to the deepest mark at or below them. `first_different`: the first token that no cached prefix has, None if the
    cache has the whole prompt. `turn`: how many message ends lie at or before it. `veto`: why less was reused than is
    shared: "evicted", "unmarked", or None if nothing was lost.
    """

    prompt_tokens: int
    page_match: int
    shared: int
    reused: int
    first_different: int | None
    turn: int
    veto: str | None

    @property
    def lost(self) -> int:
        """Tokens that are cached but had to be computed again for want of a state. The last one always has to be."""
        return max(0, min(self.shared, self.prompt_tokens - 1) - self.reused)

    def __str__(self) -> str:
        at = "" if self.first_different is None else f", token {self.first_different} (turn {self.turn}) is new"
        why = f"; {self.lost} tokens lost: {_WHY[self.veto]}" if self.veto is not None else ""
        return f"{self.reused} of {self.prompt_tokens} prompt tokens reused; {self.shared} are cached{at}{why}"


def explain(found: Lookup, prompt_tokens: int, turns: Sequence[int] = ()) -> Explanation:
    """What `found` says about the prompt that was looked up."""
    lost = min(found.shared, prompt_tokens - 1) - found.position
    veto = None
    if lost > 0:
        passed = found.path[found.position // PAGE_TOKENS :]
        veto = "evicted" if any(node.evicted for node in passed) else "unmarked"
    return Explanation(
        prompt_tokens=prompt_tokens,
        page_match=found.page_match,
        shared=found.shared,
        reused=found.position,
        first_different=found.shared if found.shared < prompt_tokens else None,
        turn=bisect_right(sorted(turns), found.shared),
        veto=veto,
    )
