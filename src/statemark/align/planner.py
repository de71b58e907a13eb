"""What becomes of a prompt and of the next ones: chunks, kept and missing states, hits, by rule.

Drives the oracle with one request at a time on an idle server. Knows no rule's inside and draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statemark.align.frame import Frame
from statemark.align.oracle import CacheGroup, Job, Prompt, World
from statemark.align.positions import Kept, tail
from statemark.align.rules import make_rule
from statemark.errors import ConfigurationError

MAX_TOKENS = 4_000_000  # of one prompt; a plan is drawn from every chunk and boundary


@dataclass(frozen=True)
class PromptPlan:
    """One prompt under one rule. `kept` are positions whose states the cache holds rightly after it, `missing` those
    that it meant to keep, `stale` pairs of (claimed position, position really held). `done` is false where the rule
    stopped giving it tokens."""

    tokens: int
    shared: int
    hit: int
    ends: tuple[int, ...]
    kept: tuple[int, ...]
    missing: tuple[int, ...]
    stale: tuple[tuple[int, int], ...]
    read_stale: bool
    done: bool

    @property
    def computed(self) -> int:
        return self.tokens - self.hit

    @property
    def steps(self) -> int:
        return len(self.ends)


@dataclass(frozen=True)
class RulePlan:
    rule: str
    prompts: tuple[PromptPlan, ...]

    @property
    def steps(self) -> int:
        return sum(p.steps for p in self.prompts)

    @property
    def computed(self) -> int:
        return sum(p.computed for p in self.prompts)


@dataclass(frozen=True)
class Plan:
    """Several rules side by side on one frame."""

    frame: Frame
    rules: tuple[RulePlan, ...]


def make_prompts(lengths: Sequence[int], shared: int | None) -> list[Prompt]:
    """Without `shared`, each prompt repeats or extends the first; with it, all share that many tokens and no more."""
    for length in lengths:
        if not 1 <= length <= MAX_TOKENS:
            raise ConfigurationError(f"--prompt must be between 1 and {MAX_TOKENS:,} tokens, got {length}")
    if shared is None:
        return [Prompt([("text", length)]) for length in lengths]
    if shared > min(lengths):
        raise ConfigurationError(
            f"--shared {shared} is longer than the shortest prompt ({min(lengths)})", hint="lower it"
        )
    return [Prompt([("shared", shared), (f"own {n}", length - shared)]) for n, length in enumerate(lengths)]


def make_plan(
    frame: Frame,
    groups: Sequence[CacheGroup],
    prompts: Sequence[Prompt],
    rules: Sequence[str],
    *,
    shared: int | None = None,
) -> Plan:
    """Ask the prompts one after another, each on an idle server that still has what the earlier ones left."""
    return Plan(frame, tuple(RulePlan(rule, _ask(frame, groups, prompts, rule, shared)) for rule in rules))


def _ask(
    frame: Frame, groups: Sequence[CacheGroup], prompts: Sequence[Prompt], rule: str, shared: int | None
) -> tuple[PromptPlan, ...]:
    world = World(frame, groups, make_rule(rule, frame))
    plans = []
    for number, prompt in enumerate(prompts):
        job = world.add(Job(f"prompt {number + 1}", prompt, outputs=max(1, frame.lookahead + 1)))
        world.run()
        overlap = 0 if number == 0 else min(len(prompt), len(prompts[0])) if shared is None else shared
        plans.append(_plan_of(world, job, overlap))
        if not job.done:
            world.running = [j for j in world.running if j is not job]
            world.waiting = [j for j in world.waiting if j is not job]
    return tuple(plans)


def _plan_of(world: World, job: Job, shared: int) -> PromptPlan:
    frame, prompt = world.frame, len(job.prompt)
    kept, missing, stale = [], [], []
    wish = Kept(frame, prompt, job.junction)
    points = {*wish.points(), tail(frame, prompt)} - {0}
    positions = {p for p in range(frame.grid.tokens, prompt + 1, frame.grid.tokens) if wish.periodic(p)} | points
    for position in sorted(positions):
        entry = world.cache.states.get(job.tokens.digest(position)) if position <= prompt else None
        if entry is None:
            missing.append(position)
        elif entry.content.position == position and entry.content.honest:
            kept.append(position)
        else:
            stale.append((position, entry.content.position))
    return PromptPlan(
        tokens=prompt,
        shared=shared,
        hit=job.hits[0] if job.hits else 0,
        ends=tuple(job.ends),
        kept=tuple(kept),
        missing=tuple(p for p in missing if p < prompt),
        stale=tuple(stale),
        read_stale=job.stale_reads > 0,
        done=job.done,
    )
