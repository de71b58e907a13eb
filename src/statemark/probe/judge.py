"""The verdict from measured cells. Pure: same measurements, same verdict; knows no server and no clock.

Two questions decide. Does a request that found nothing in the cache always say the same (repeated, in company, cut into
other chunks)? The largest shift there is the `control`: what this server's arithmetic does by itself. And does a
request that found something say what it says without? A shift that the control doesn't explain comes from the cache.

How large is large, is measured as well, with the same model: changing one token makes an `edit` shift, which fades with
the tokens behind it, and another document's prefix a `foreign` one. A state of another position or request moves the
numbers on that scale; rounding moves them far less.

A small shift that only prefixes of other writers show may have two reasons: what the writer has left there, or merely
where its longer or shorter prompt was cut into chunks. Twins tell: writers with other tokens and the same lengths. If
the answer is the same bit for bit after either, it was the shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from statemark.probe.answer import Shift
from statemark.words import counted

COLD = ("repeat", "mates", "chunks")  # cells without a hit: what is not the cache's doing
OWN = ("again", "mates hit")  # hits on what the same prompt has written
FOREIGN = ("writer", "boundary")  # hits on what another request has written
NEEDED = ("repeat", "again", "writer")  # without these there is no verdict
EXPLAINED = 4.0  # times the control: what one draw of rounding may be beyond another
LARGE = 0.25  # of an edit or another document: not rounding any more
OFTEN, SEVERAL = 1 / 12, 3  # the same of so many prompts: rounding has rare large draws, a wrong state has many

NOTHING = "nothing was reused, although it could have been"
ALONE = "no request reused what another had written"
_ADVICE = "if the cache was full or used by others: lower --limit, give the server more memory for it, or ask it alone"

EXIT_CODES = {"exact": 0, "drift": 3, "contaminated": 4, "invalid": 5}

WORDS = {
    "repeat": "the same prompt, alone and with nothing cached",
    "mates": "the same prompt with nothing cached, while other requests decode",
    "chunks": "the same prompt with nothing cached, beside long prompts that share its steps",
    "again": "hits on what the same prompt has written",
    "mates hit": "hits among other requests that decode",
    "turns": "later turns of one conversation",
    "writer": "hits on prefixes that other requests have written",
    "boundary": "hits on prefixes around block boundaries",
    "twin": "the same with other writers of equal lengths",
    "salt": "a request with a cache salt of its own",
}


@dataclass(frozen=True)
class Scale:
    """`edits`: (tokens behind the edited one, shift that it makes); `foreign`: shift that another document makes."""

    edits: tuple[tuple[int, float], ...] = ()
    foreign: float = 0.0

    def edit(self, behind: int) -> float:
        """What an edit with so many tokens behind it makes, between those measured; 0 where none was."""
        if not self.edits:
            return 0.0
        (near, a), (far, b) = self.edits[0], self.edits[-1]
        for d, size in self.edits:
            if d <= behind:
                near, a = d, size
            else:
                far, b = d, size
                break
        if behind <= near or far <= near:
            return a
        share = min(1.0, math.log(behind / near) / math.log(far / near))
        return a + (b - a) * share


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One measured request against its cold reference.

    `shared`: tokens of the prompt that were in the cache by construction; `cached`: those that the server says it
    reused (None: it didn't say). `valid`: what the cell is about did happen; else `why` says what didn't.
    """

    cell: str
    label: str
    prompt: int
    shared: int = 0
    cached: int | None = None
    run: int = 1
    shift: Shift = field(default_factory=Shift)
    digest: str = ""
    valid: bool = True
    why: str = ""

    @property
    def behind(self) -> int:
        """Tokens from where the prompt may have been cut last: after what was reused, or where writers went on
        differently, since a server may save a state there."""
        cut = self.shared if self.shared < self.prompt else 0
        return max(1, self.prompt - max(cut, self.cached or 0))

    def figures(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "label": self.label,
            "prompt_tokens": self.prompt,
            "shared_tokens": self.shared,
            "cached_tokens": self.cached,
            "run": self.run,
            "digest": self.digest,
            "valid": self.valid,
            "why": self.why,
            **self.shift.figures(),
        }


@dataclass(frozen=True)
class Verdict:
    """`kind`: a key of EXIT_CODES. `reasons`: sentences, the weightiest first. `cells`: the cells that show it."""

    kind: str
    reasons: tuple[str, ...]
    cells: tuple[str, ...]
    control: float
    largest: float

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.kind]


def judge(observations: Sequence[Observation], scale: Scale) -> Verdict:
    """Sizes are differences of log-probabilities, natural logarithm."""
    valid = [o for o in observations if o.valid]
    moved = [o for o in valid if not o.shift.exact]
    control = _most(moved, COLD, scale)
    bad = contaminated(observations, scale)
    largest = max((o.shift.size for o in moved), default=0.0)
    if bad:
        return _verdict("contaminated", bad, control, largest)
    missing = _missing(observations, scale)
    if missing:
        return Verdict("invalid", missing, (), control, largest)
    short = tuple(_short_words(observations))
    if moved:
        return _verdict("drift", moved, control, largest, short)
    return Verdict("exact", (f"all {len(valid)} answers equal their cold reference bit for bit", *short), (), 0.0, 0.0)


def contaminated(observations: Sequence[Observation], scale: Scale) -> list[Observation]:
    """Those that are more than drift."""
    large, small = suspects(observations, scale)
    return [*large, *(o for o in small if not _has_twin(o, observations))]


def is_large(o: Observation, scale: Scale, share: float = LARGE) -> bool:
    if o.cell == "salt":
        return True
    return o.shift.size > share * (scale.foreign if o.cell in COLD else scale.edit(o.behind))


def _most(moved: Sequence[Observation], cells: Sequence[str], scale: Scale) -> float:
    return max((o.shift.size for o in moved if o.cell in cells and not is_large(o, scale)), default=0.0)


def suspects(observations: Sequence[Observation], scale: Scale) -> tuple[list[Observation], list[Observation]]:
    """What the control doesn't explain: large shifts, and small ones where it seems to matter who wrote."""
    moved = [o for o in observations if o.valid and not o.shift.exact]
    control, own = _most(moved, COLD, scale), _most(moved, OWN, scale)
    hits = [o for o in moved if o.cell not in COLD and o.shift.size > EXPLAINED * control]
    often = [o for o in hits if o.cell != "salt" and is_large(o, scale, OFTEN)]
    share = OFTEN if len({(o.cell, o.label) for o in often}) >= SEVERAL else LARGE
    large = [o for o in moved if o.cell in (*COLD, "salt") and is_large(o, scale)]
    large += [o for o in hits if o.cell != "salt" and is_large(o, scale, share)]
    seen = {id(o) for o in large}
    writers = [o for o in hits if o.cell in FOREIGN and o.shift.size > EXPLAINED * max(control, own)]
    return large, [o for o in writers if id(o) not in seen]


def _has_twin(o: Observation, observations: Sequence[Observation]) -> bool:
    """Whether writers with other tokens and the same lengths led to the same answer, bit for bit."""
    twins = [t for t in observations if t.cell == "twin" and t.label == o.label and t.run == o.run and t.valid]
    return bool(twins) and all((t.digest, t.cached) == (o.digest, o.cached) for t in twins)


def _too_short(observations: Sequence[Observation]) -> list[Observation]:
    """Requests that found nothing in prefixes shorter than every one that was reused: servers keep no state so early.

    Where nothing is reused nothing can be wrong, so they cost no verdict. A miss among hits does.
    """
    used = min((o.shared for o in observations if o.valid and o.cell in FOREIGN and o.cached), default=0)
    return [
        o
        for o in observations
        if not o.valid and o.cell == "boundary" and o.why in (ALONE, NOTHING) and o.shared < used
    ]


def _short_words(observations: Sequence[Observation]) -> list[str]:
    longest = max((o.shared for o in _too_short(observations)), default=0)
    return [f"prefixes of up to {counted(longest, 'token')} by other requests were never reused"] if longest else []


def _missing(observations: Sequence[Observation], scale: Scale) -> tuple[str, ...]:
    measured = {o.cell for o in observations if o.valid}
    reasons = [f"nothing valid was measured of: {WORDS[cell]}" for cell in NEEDED if cell not in measured]
    unused = {id(o) for o in _too_short(observations)}
    dead = [o for o in observations if not o.valid and o.cell != "salt" and id(o) not in unused]
    reasons += sorted({f"{WORDS[o.cell]}: {o.why}" for o in dead})
    if any(o.why == NOTHING for o in dead):
        reasons.append(_ADVICE)
    if not any(size > 0 for _, size in scale.edits):
        reasons.append("changing a token of the prompt doesn't change the answer: these documents can show nothing")
    return tuple(reasons)


def _verdict(
    kind: str, shown: list[Observation], control: float, largest: float, more: tuple[str, ...] = ()
) -> Verdict:
    reasons = []
    cells = tuple(cell for cell in WORDS if any(o.cell == cell for o in shown))
    for cell in cells:
        found = [o for o in shown if o.cell == cell]
        worst = max(found, key=lambda o: o.shift.size)
        reasons.append(f"{WORDS[cell]}: {_effect(worst)}")
    if kind == "drift":
        beyond = tuple(c for c in cells if any(o.cell == c and o.shift.size > EXPLAINED * control for o in shown))
        reasons.append(_explanation(cells, beyond))
    return Verdict(kind, (*reasons, *more), cells, control, largest)


def _explanation(cells: Sequence[str], beyond: Sequence[str]) -> str:
    """`beyond`: the cells whose shifts are more than what cold answers show."""
    cold = [WORDS[c] for c in cells if c in COLD]
    if "twin" in cells:
        return "explained by chunk shape: writers of equal lengths lead to the same answer, whatever their tokens"
    if cold and not beyond:
        return f"explained by {' and '.join(cold)}, where the cache has no part"
    if tuple(beyond) == ("turns",):
        return "likely chunk shape: answers were computed token by token, and in the cold reference as a prompt"
    return "hits differ a little from cold answers, whoever wrote the prefix"


def _effect(o: Observation) -> str:
    if o.cell == "salt":
        return f"{counted(o.cached or 0, 'token')} came from a prefix of another salt"
    text = "the text as well" if o.shift.text is not None else "the text stays the same"
    if o.shift.argmax is not None:
        text = f"the likeliest token too, {text}"
    return f"log-probabilities move by up to {o.shift.size:.3g} from token {o.shift.first} on; {text}"
