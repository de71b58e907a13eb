"""Findings about a step's token budget: what idles, what waits, what never moves.

All of them read the block that the server's own cut reads, which is the smallest of any group.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from statemark.align.configuration import Setup
from statemark.align.findings.kind import Finding, Level
from statemark.align.positions import Prefill
from statemark.align.rules import StockRule

IDLE_SHARE = 0.25
_HEADROOM_REQUESTS = 64  # running requests to leave room for, where --concurrency isn't given


@dataclass(frozen=True)
class Advance:
    """How far one long prompt gets in a step of its own, and what of the budget that leaves unused."""

    offer: int
    block: int

    @property
    def inside_a_block(self) -> bool:
        """Whether no step can hold a block, so that chunks advance inside it."""
        return self.block > self.offer

    @property
    def tokens(self) -> float:
        if self.inside_a_block:
            return self.block / ceil(self.block / self.offer)
        return self.offer // self.block * self.block

    @property
    def idle(self) -> float:
        return 1 - self.tokens / self.offer


def advance(setup: Setup) -> Advance:
    return Advance(setup.frame.offer_limit, setup.frame.config_minimum.tokens)


def decode_tokens(setup: Setup) -> int:
    """Tokens that one running request takes of a step."""
    return 1 + setup.geometry.drafting.depth


def idle_budget(setup: Setup) -> Finding | None:
    pace, threshold = advance(setup), setup.flags.long_prefill_threshold
    if not setup.geometry.caching or threshold > 0 or pace.inside_a_block or pace.idle <= IDLE_SHARE:
        return None
    room = min(setup.budget.requests, setup.concurrency or _HEADROOM_REQUESTS) * decode_tokens(setup)
    slots = setup.frame.draft_slots
    better = ceil(pace.offer / pace.block) * pace.block + room + slots
    return Finding(
        code="idle-budget",
        level=Level.WARNING,
        sentence=(
            f"A long prompt advances {pace.tokens:,.0f} of {pace.offer:,} tokens a step, because chunks end on "
            "blocks of "
            f"{pace.block:,}: {pace.idle:.0%} of the budget idles."
        ),
        remedy=f"--max-num-batched-tokens {better} (the next multiple of the block, and room for running requests)",
        numbers={
            "tokens_per_step": int(pace.tokens),
            "budget": setup.budget.tokens,
            "block": pace.block,
            "idle_share": round(pace.idle, 4),
            "suggested_budget": better,
        },
    )


def stalled_prompt(setup: Setup) -> Finding | None:
    frame = setup.frame
    block, limit = frame.config_minimum.tokens, frame.step_limit
    if not setup.geometry.caching or not frame.offer_limit < block <= limit:
        return None
    return Finding(
        code="stalled-prompt",
        level=Level.ERROR,
        sentence=(
            f"A prompt of more than {frame.offer_limit:,} tokens never starts: the drafter's {frame.draft_slots} slots "
            f"leave {frame.offer_limit:,} of {limit:,} tokens, less than the block of {block:,} that the server "
            "waits for. "
            "At the head of the queue it blocks every request behind it."
        ),
        remedy=f"--max-num-batched-tokens {block + frame.draft_slots + setup.budget.requests * decode_tokens(setup)}",
        numbers={"block": block, "budget": limit, "draft_slots": frame.draft_slots, "offered": frame.offer_limit},
    )


def head_of_line(setup: Setup) -> Finding | None:
    """How many running requests stop every prefill: vLLM gives a prompt nothing rather than less than a block."""
    frame = setup.frame
    block, slots, each = frame.config_minimum.tokens, frame.draft_slots, decode_tokens(setup)
    if not setup.geometry.caching or block > frame.offer_limit or setup.flags.long_prefill_threshold > 0:
        return None
    needed = (frame.offer_limit - block) // (each + slots) + 1
    most = min(setup.budget.requests, setup.concurrency or setup.budget.requests)
    if needed > most:
        return None
    return Finding(
        code="head-of-line",
        level=Level.WARNING,
        sentence=(
            f"While {needed} or more requests decode ({each} tokens a step each), a waiting prompt of more than a "
            "block "
            f"({block:,}) gets nothing, and blocks the queue behind it until some of them end."
        ),
        remedy=f"--max-num-batched-tokens {block + slots + most * (each + slots)}, or --max-num-seqs {needed - 1}",
        numbers={"requests": needed, "tokens_each": each, "block": block, "budget": frame.step_limit},
    )


def stalled_by_modules(setup: Setup) -> Finding | None:
    """Multi-module MTP pulls a chunk's end back from a boundary near the prompt's end, and then back to nothing."""
    frame = setup.frame
    if not setup.geometry.caching or frame.lookahead <= 1:
        return None
    rule, block = StockRule(frame), frame.config_minimum.tokens
    blocks = frame.offer_limit // block + 3
    for prompt in (k * block + r for k in range(1, blocks + 1) for r in range(1, frame.lookahead)):
        at = 0
        view = Prefill(prompt, prompt)
        while at < prompt:
            count = rule.cut(view, at, min(frame.offer_limit, prompt - at))
            if count == 0:
                return Finding(
                    code="stalled-by-modules",
                    level=Level.ERROR,
                    sentence=(
                        f"Prompts that end up to {frame.lookahead - 1} tokens past a block never finish: one of "
                        f"{prompt:,} "
                        f"tokens stops at {at:,} for good, because {frame.lookahead} draft modules hold back the chunk."
                    ),
                    remedy="num_speculative_tokens 1 in --speculative-config",
                    numbers={"prompt": prompt, "stops_at": at, "lookahead": frame.lookahead, "block": block},
                )
            at += count
    return None


def encoder_limits(setup: Setup) -> Finding | None:
    if not setup.shape.multimodal or setup.flags.text_only or not setup.geometry.caching:
        return None
    budget, block = setup.budget.tokens, setup.frame.config_minimum.tokens
    return Finding(
        code="encoder-limits",
        level=Level.INFO,
        sentence=(
            f"Images and videos have a budget and a cache of {budget:,} embeddings a step by default. A chunk ends "
            "before "
            f"an item that doesn't fit, off the blocks of {block:,}, and no state is kept there; two items that exceed "
            "the cache together slow a prompt to a crawl."
        ),
        remedy="--max-num-batched-tokens above the two largest items together, or --language-model-only for text",
        numbers={"encoder_budget": budget, "block": block},
    )
