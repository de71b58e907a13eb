"""The verdict from measured cells. Pure: same measurements, same verdict; knows no server and no clock.

Two questions decide. Does a request that found nothing in the cache always say the same (repeated, in company, cut into
other chunks)? The largest shift there is the `control`: what this server's arithmetic does by itself. And does a
request that found something say what it says without? A shift that the control doesn't explain comes from the cache.

How large is large, is measured as well, with the same model: `edit` is the shift that changing one token just before
the boundary makes, `foreign` the shift that another document's prefix makes. A state of another position or request
moves the numbers on that scale; rounding moves them far less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from statemark.probe.answer import Shift

COLD = ("repeat", "mates", "chunks")  # cells without a hit: what is not the cache's doing
OWN = ("again", "mates hit")  # hits on what the same prompt has written
FOREIGN = ("writer", "boundary", "turns")  # hits on what another request has written, an earlier turn included
NEEDED = ("repeat", "again", "writer")  # without these there is no verdict
EXPLAINED = 4.0  # times the control: what one draw of rounding may be beyond another
LARGE = 0.125  # of `edit` or `foreign`: not rounding any more

EXIT_CODES = {"exact": 0, "drift": 3, "contaminated": 4, "invalid": 5}

WORDS = {
    "repeat": "the same prompt, alone and with nothing cached",
    "mates": "the same prompt with nothing cached, while other requests decode",
    "chunks": "the same prompt with nothing cached, beside long prompts that share its steps",
    "again": "hits on what the same prompt has written",
    "mates hit": "hits among other requests that decode",
    "turns": "later turns of one conversation",
    "writer": "hits on prefixes that other requests have written",
    "boundary": "hits on prefixes that end around block boundaries",
    "salt": "a request with a cache salt of its own",
}


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


def judge(observations: Sequence[Observation], *, edit: float, foreign: float) -> Verdict:
    """`edit` and `foreign`: see above; log-probability, natural log."""
    valid = [o for o in observations if o.valid]
    moved = [o for o in valid if not o.shift.exact]
    limits = {"edit": edit, "foreign": foreign}
    control = max((o.shift.size for o in moved if o.cell in COLD and not _large(o, limits)), default=0.0)
    own = max((o.shift.size for o in moved if o.cell in OWN and not _large(o, limits)), default=0.0)
    bad = [o for o in moved if _contaminated(o, limits, control, own)]
    largest = max((o.shift.size for o in moved), default=0.0)
    if bad:
        return _verdict("contaminated", bad, control, largest)
    missing = _missing(observations, edit)
    if missing:
        return Verdict("invalid", missing, (), control, largest)
    if moved:
        return _verdict("drift", moved, control, largest)
    return Verdict("exact", (f"all {len(valid)} answers equal their cold reference bit for bit",), (), 0.0, 0.0)


def contaminated(o: Observation, *, edit: float, foreign: float, control: float, own: float) -> bool:
    """Whether this one observation, alone, is more than drift; for looking for a boundary."""
    return not o.shift.exact and _contaminated(o, {"edit": edit, "foreign": foreign}, control, own)


def _large(o: Observation, limits: dict[str, float]) -> bool:
    scale = limits["foreign"] if o.cell in COLD else limits["edit"]
    return o.shift.size > LARGE * scale


def _contaminated(o: Observation, limits: dict[str, float], control: float, own: float) -> bool:
    if o.cell == "salt":
        return True
    if o.cell in COLD:
        return _large(o, limits)
    if o.shift.size <= EXPLAINED * control:
        return False
    if o.cell in FOREIGN and o.shift.size > EXPLAINED * max(control, own):
        return True  # it matters who wrote
    return _large(o, limits)


def _missing(observations: Sequence[Observation], edit: float) -> tuple[str, ...]:
    measured = {o.cell for o in observations if o.valid}
    reasons = [f"nothing valid was measured of: {WORDS[cell]}" for cell in NEEDED if cell not in measured]
    dead = [o for o in observations if not o.valid and o.cell != "salt"]
    reasons += sorted({f"{WORDS[o.cell]}: {o.why}" for o in dead})
    if not edit > 0:
        reasons.append("changing a token of the prompt doesn't change the answer: these documents can show nothing")
    return tuple(reasons)


def _verdict(kind: str, shown: list[Observation], control: float, largest: float) -> Verdict:
    reasons = []
    cells = tuple(cell for cell in WORDS if any(o.cell == cell for o in shown))
    for cell in cells:
        found = [o for o in shown if o.cell == cell]
        worst = max(found, key=lambda o: o.shift.size)
        reasons.append(f"{WORDS[cell]}: {_effect(worst)}")
    if kind == "drift":
        explained = [c for c in cells if c in COLD]
        reasons.append(
            f"explained by {' and '.join(WORDS[c] for c in explained)}, where the cache has no part"
            if explained
            else "hits differ a little from cold answers, whoever wrote the prefix"
        )
    return Verdict(kind, tuple(reasons), cells, control, largest)


def _effect(o: Observation) -> str:
    if o.cell == "salt":
        return f"{o.cached} tokens came from a prefix of another salt"
    text = "the text as well" if o.shift.text is not None else "the text stays the same"
    if o.shift.argmax is not None:
        text = f"the likeliest token too, {text}"
    return f"log-probabilities move by up to {o.shift.size:.3g} from token {o.shift.first} on; {text}"
