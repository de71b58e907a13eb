"""Findings about speculative decoding: hits given back without need, drafters that nobody can see."""

from __future__ import annotations

from statemark.align.configuration import Setup
from statemark.align.findings.kind import Finding, Level


def back_off_without_need(setup: Setup) -> Finding | None:
    """Giving back the last block is right for heads that write it. A drafter with layers of its own never does."""
    drafting, frame = setup.geometry.drafting, setup.frame
    if not setup.geometry.caching or drafting.method not in ("dflash", "dspark") or not drafting.block_drop:
        return None
    unit = frame.hit_unit.tokens
    everywhere = (
        "" if drafting.drafter_is_found else " from every group, as the server can't tell which is the drafter's,"
    )
    return Finding(
        code="back-off-without-need",
        level=Level.WARNING,
        sentence=(
            f"Every hit gives back a block of {unit:,}{everywhere} although {drafting.method} keeps its keys in "
            "layers of "
            f"its own: prompts below {2 * unit:,} tokens never hit, longer ones recompute {unit:,} more."
        ),
        remedy='"disable_eagle_block_drop": true in --speculative-config',
        numbers={"given_back": unit, "shortest_prompt": 2 * unit},
    )


def drafter_unknown(setup: Setup) -> Finding | None:
    drafting = setup.geometry.drafting
    if not drafting.own_cache or drafting.draft is not None:
        return None
    return Finding(
        code="drafter-unknown",
        level=Level.WARNING,
        sentence=(
            f"The drafter's config.json wasn't found, so its layers are left out: with {drafting.method} they can "
            "change "
            "every block size above."
        ),
        remedy="--drafter FOLDER (of statemark check)",
        numbers={"method": drafting.method},
    )
