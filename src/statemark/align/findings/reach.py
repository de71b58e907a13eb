"""Findings about what can ever hit: blocks that are too large, units that differ, states that aren't there."""

from __future__ import annotations

from math import gcd

from statemark.align.configuration import Setup
from statemark.align.findings.correctness import STOCK
from statemark.align.findings.kind import Finding, Level
from statemark.align.planner import make_plan, make_prompts

MINIMUM_WORTH_A_WARNING = 2048


def minimum_prompt(setup: Setup) -> int:
    """The shortest prompt that hits anything when it is asked again."""
    unit = setup.frame.hit_unit.tokens
    return 2 * unit if setup.frame.drop else unit + 1


def minimum_shared(setup: Setup) -> int:
    """The shortest prefix that two different prompts can share to any use. A match unit below the grid doesn't help
    them: it refines where hits may end, not where states are left."""
    frame = setup.frame
    if frame.fine:
        return frame.grid.tokens + (frame.hash_unit.tokens if frame.drop else 0)
    return minimum_prompt(setup) - (0 if frame.drop else 1)


def inert(setup: Setup) -> Finding | None:
    longest, shortest = setup.geometry.max_model_len, minimum_prompt(setup)
    if not setup.geometry.caching or shortest <= longest:
        return None
    unit = setup.frame.hit_unit.tokens
    return Finding(
        code="cache-inert",
        level=Level.ERROR,
        sentence=(
            f"The prefix cache can't hit anything: a prompt needs {shortest:,} tokens (blocks of {unit:,}"
            f"{', and the drafter gives one back' if setup.frame.drop else ''}), the longest allowed has {longest:,}."
        ),
        remedy=f"--max-model-len {shortest} or more, --mamba-ssm-cache-dtype bfloat16, or --no-enable-prefix-caching",
        numbers={"hit_unit": unit, "shortest_prompt": shortest, "max_model_len": longest},
    )


def minimum_prefix(setup: Setup) -> Finding | None:
    shared, longest = minimum_shared(setup), setup.geometry.max_model_len
    if not setup.geometry.caching or minimum_prompt(setup) > longest:
        return None
    large = shared >= MINIMUM_WORTH_A_WARNING or 4 * shared > longest
    return Finding(
        code="minimum-prefix",
        level=Level.WARNING if large else Level.INFO,
        sentence=(
            f"Prompts that share less than {shared:,} tokens reuse nothing, and of longer shared parts up to "
            f"{setup.frame.grid.tokens - 1:,} tokens at the end are computed again."
        ),
        remedy=f"a smaller state (--mamba-ssm-cache-dtype bfloat16), or a KV cache of wider dtype{_finer(setup)}",
        numbers={"minimum_shared": shared, "hit_unit": setup.frame.hit_unit.tokens},
    )


def _finer(setup: Setup) -> str:
    """A match unit below the grid, where that is safe: not with kernels that export states, nor beside a window."""
    frame = setup.frame
    unit = gcd(frame.grid.tokens, frame.kernel_chunk.tokens)
    if frame.checkpoint_step is not None or frame.windowed or frame.fine or unit < 16:
        return ""
    return f"; for prompts that are repeated or extended, --prefix-match-unit {unit}"


def hit_unit_above_grid(setup: Setup) -> Finding | None:
    """Hits are rounded to the common multiple of all blocks, while the server stops on the smallest."""
    frame = setup.frame
    unit, grid = frame.hit_unit.tokens, frame.grid.tokens
    if not setup.geometry.caching or unit <= grid:
        return None
    blocks = sorted({g.tokens for g in setup.geometry.groups})
    length = 4 * unit + unit // 2 + grid // 3 + 1
    plan = make_plan(frame, setup.groups, make_prompts([length] * 3, None), [STOCK])
    hits = [p.hit for p in plan.rules[0].prompts]
    return Finding(
        code="hit-unit-above-grid",
        level=Level.WARNING,
        sentence=(
            f"Blocks of {', '.join(map(str, blocks))} make hits end on multiples of {unit:,}, but states are left on "
            f"multiples of {frame.config_minimum}: a prompt of {length:,} tokens asked three times hits "
            f"{', '.join(f'{h:,}' for h in hits)}."
        ),
        remedy="a drafter with as many KV bytes a token as the model, or statemark's vLLM plugin",
        numbers={"hit_unit": unit, "state_grid": grid, "prompt": length, "second_hit": hits[1], "third_hit": hits[2]},
    )


def interval_without_stops(setup: Setup) -> Finding | None:
    """A retention interval keeps what is there; nothing makes the server leave a state there."""
    frame, interval = setup.frame, setup.flags.retention_interval
    if not setup.geometry.caching or interval == 0:
        return None
    stride = interval or frame.grid.tokens
    length = min(max(8 * stride, 30_000), max(setup.geometry.max_model_len - 1, stride + 1))
    plan = make_plan(frame, setup.groups, make_prompts([length], None), [STOCK])
    prompt = plan.rules[0].prompts[0]
    due = list(range(stride, length, stride))
    present = sum(p in prompt.kept for p in due)
    if present == len(due):
        return None
    shown = "every boundary" if interval is None else f"every {interval:,} tokens"
    return Finding(
        code="interval-without-stops",
        level=Level.WARNING,
        sentence=(
            f"--prefix-cache-retention-interval {interval} asks for a state at {shown}, but no chunk is made to "
            "end there: "
            f"of {len(due)} due in a prompt of {length:,} tokens, {present} exist."
        ),
        remedy=(
            f"--max-num-batched-tokens below {2 * frame.config_minimum.tokens + frame.draft_slots} (one block a "
            "step), or "
            "statemark's vLLM plugin"
        ),
        numbers={"interval": stride, "due": len(due), "present": present, "prompt": length},
    )


def match_unit_disabled(setup: Setup) -> Finding | None:
    coarse = setup.geometry.coarse_groups
    unit = setup.geometry.hash_unit.tokens
    if not setup.geometry.caching or not coarse or unit >= setup.frame.grid.tokens:
        return None
    asked = setup.flags.prefix_match_unit
    if asked is None:
        return None
    names = ", ".join(f"{g.label} (blocks of {g.tokens})" for g in coarse)
    return Finding(
        code="match-unit-disabled",
        level=Level.WARNING,
        sentence=(
            f"--prefix-match-unit {asked} has no effect: {names} can't take a hit inside a block, so hits end on "
            f"multiples of {setup.frame.hit_unit.tokens:,}."
        ),
        remedy="remove --prefix-match-unit, or use a drafter without a sliding window",
        numbers={"match_unit": asked, "hit_unit": setup.frame.hit_unit.tokens},
    )


def few_states(setup: Setup) -> Finding | None:
    """States are as large as a block of every recurrent group, and share the pool with everything else."""
    blocks, geometry = setup.blocks, setup.geometry
    if blocks is None:
        return None
    want = setup.concurrency or setup.budget.requests
    running = want * geometry.fixed_blocks
    if running > blocks:
        return Finding(
            code="few-states",
            level=Level.ERROR if geometry.fixed_blocks > blocks else Level.WARNING,
            sentence=(
                f"{want} running requests need {running:,} blocks for their states alone ({geometry.fixed_blocks} "
                "each); "
                f"the pool has {blocks:,}."
            ),
            remedy=f"--max-num-seqs {max(1, blocks // (2 * geometry.fixed_blocks))}, or more KV-cache memory",
            numbers={"requests": want, "blocks": blocks, "blocks_each": geometry.fixed_blocks},
        )
    if not geometry.caching or setup.concurrency is None:
        return None
    each = geometry.blocks_of(min(geometry.max_model_len, 8192), setup.in_flight) + sum(
        g.copies for g in geometry.state_groups
    )
    if want * each <= blocks:
        return None
    return Finding(
        code="few-states",
        level=Level.WARNING,
        sentence=(
            f"The pool of {blocks:,} blocks holds {blocks // each} requests of 8,192 tokens with one kept state each "
            f"({each} blocks): {want} sessions push out each other's states."
        ),
        remedy="more KV-cache memory, or a smaller state (--mamba-ssm-cache-dtype bfloat16)",
        numbers={"sessions": want, "blocks": blocks, "blocks_each": each, "fits": blocks // each},
    )
