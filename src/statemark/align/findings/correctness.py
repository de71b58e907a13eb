"""Findings about wrong states: entries that hold something else than they say, and chunks that change numbers.

The examples in their sentences are computed by the oracle, for this very configuration.
"""

from __future__ import annotations

from math import lcm

from statemark.align.configuration import Setup
from statemark.align.findings.kind import Finding, Level
from statemark.align.oracle import Prompt
from statemark.align.planner import make_plan, make_prompts

STOCK = "vllm-0.32"


def wrong_grid(setup: Setup) -> Finding | None:
    """The server cuts on the smallest block of any group, while states live on the recurrent groups' own."""
    frame = setup.frame
    smallest, grid = frame.config_minimum.tokens, frame.grid.tokens
    if not setup.geometry.caching or smallest == grid:
        return None
    owner = next(g.label for g in setup.geometry.cacheable if g.unit.tokens == smallest)
    prompt, claim, held = _stale_example(setup) or (0, 0, 0)
    example = (
        f" A prompt of {prompt:,} tokens leaves an entry for {claim:,} that holds the state after {held:,}."
        if claim
        else f" They meet at multiples of {lcm(smallest, grid):,} only, so in between no state is kept."
    )
    return Finding(
        code="wrong-grid",
        level=Level.ERROR,
        sentence=(
            f"Chunks are cut on blocks of {smallest:,} ({owner}), states are kept on blocks of {grid:,}.{example} "
            "Whoever hits such an entry is answered from another prefix, silently."
        ),
        remedy=(
            "an attention backend for the drafter that takes any multiple of 16 (FLASH_ATTN, TRITON_ATTN), "
            "or statemark's vLLM plugin"
        ),
        numbers={"config_minimum": smallest, "state_grid": grid, "entry": claim, "holds": held},
    )


def _stale_example(setup: Setup) -> tuple[int, int, int] | None:
    """(prompt, claimed position, position really held) of the first wrong entry that a few prompts lead to."""
    frame = setup.frame
    unit = frame.hit_unit.tokens
    blocks = [5 * frame.grid.tokens // unit, *range(1, 3 * (frame.offer_limit // unit) + 4)]
    for prompt in (k * unit + r for k in blocks if k for r in (0, 1, unit // 3, unit // 2, unit - 1)):
        if prompt >= setup.geometry.max_model_len:
            continue
        plan = make_plan(frame, setup.groups, make_prompts([prompt], None), [STOCK])
        for claim, held in plan.rules[0].prompts[0].stale:
            return prompt, claim, held
    return None


def stale_checkpoint(setup: Setup) -> Finding | None:
    """A hit that ends inside a block, and a kernel that exports states: the server then skips the block's boundary."""
    frame = setup.frame
    if not setup.geometry.caching or not frame.fine or frame.checkpoint_step is None:
        return None
    claim, held = _checkpoint_example(setup) or (0, 0)
    example = f" Three prompts suffice here: an entry for {claim:,} holds the state after {held:,}." if claim else ""
    return Finding(
        code="stale-checkpoint",
        level=Level.ERROR,
        sentence=(
            f"A prefix-match unit of {frame.hash_unit} below the state grid of {frame.grid} lets a prompt resume "
            "inside a "
            f"block, and this model's kernels let it run past the block's boundary: the half-filled block is then kept "
            f"as if it were full.{example}"
        ),
        remedy=f"remove --prefix-match-unit (it then is {frame.grid}), or statemark's vLLM plugin",
        numbers={"match_unit": frame.hash_unit.tokens, "state_grid": frame.grid.tokens, "entry": claim, "holds": held},
    )


def _checkpoint_example(setup: Setup) -> tuple[int, int] | None:
    """A prompt; a longer one that shares it but for its end; one that leaves the second inside a block."""
    frame = setup.frame
    grid, unit = frame.grid.tokens, frame.hash_unit.tokens
    first = 10 * grid + grid // 2
    resume = first // unit * unit
    prompts = [
        Prompt([("a", first)]),
        Prompt([("a", resume), ("b", 4 * grid)]),
        Prompt([("a", resume), ("b", grid - (resume % grid) + unit), ("c", 2 * grid)]),
    ]
    plan = make_plan(frame, setup.groups, prompts, [STOCK])
    return next((s for p in plan.rules[0].prompts for s in p.stale), None)


def uneven_chunks(setup: Setup) -> Finding | None:
    """Cold runs take several blocks in a chunk, warm ones don't: other sums, other last digits."""
    frame = setup.frame
    block = frame.config_minimum.tokens
    if not setup.geometry.caching or frame.offer_limit < 2 * block:
        return None
    return Finding(
        code="uneven-chunks",
        level=Level.INFO,
        sentence=(
            f"A cold prompt runs up to {frame.offer_limit // block} blocks in one chunk, a warm one resumes in "
            "between: "
            "the kernels then add up in another order, so log-probabilities depend on who wrote the shared prefix."
        ),
        remedy="the rule 'exact' of statemark's vLLM plugin, where answers must not depend on the cache",
        numbers={"blocks_per_chunk": frame.offer_limit // block, "block": block},
    )


def match_unit_off_kernel(setup: Setup) -> Finding | None:
    frame = setup.frame
    if not setup.geometry.caching or not frame.fine or frame.kernel_chunk.on(frame.hash_unit.tokens):
        return None
    return Finding(
        code="match-unit-off-kernel",
        level=Level.INFO,
        sentence=(
            f"Hits may end on multiples of {frame.hash_unit}, which the recurrent kernel's chunks of "
            f"{frame.kernel_chunk} "
            "don't divide: a warm prompt is computed in other chunks than a cold one."
        ),
        remedy=f"a --prefix-match-unit that is a multiple of {frame.kernel_chunk} and divides {frame.grid}",
        numbers={"match_unit": frame.hash_unit.tokens, "kernel_chunk": frame.kernel_chunk.tokens},
    )
