"""Random servers and request histories, run under any rule, with everything that went wrong by name.

The same function judges our rules (nothing may go wrong) and vLLM 0.32's (its known defects must show).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd, lcm

from hypothesis import strategies as st

from statemark.align.frame import Frame
from statemark.align.groups import Role
from statemark.align.oracle import Cache, CacheGroup, Content, Job, Limits, Prompt, World
from statemark.align.oracle.cache import StateEntry
from statemark.align.positions import Kept, Prefill, tail
from statemark.align.rules import make_rule
from statemark.align.units import ConfigMinimum, HashUnit, HitUnit, KernelChunk, SchedulerBlock, StateGrid


@dataclass(frozen=True)
class Server:
    """A frame with the groups behind it and the drafter's depth."""

    frame: Frame
    groups: tuple[CacheGroup, ...]
    drafts: int = 0


@dataclass(frozen=True)
class Request:
    """Parts name shared prefixes. `trims` shorten chunks after the rule, `preempt_after` counts its own chunks."""

    parts: tuple[tuple[str, int], ...]
    outputs: int = 1
    arrives: int = 0
    trims: tuple[int, ...] = ()
    preempt_after: int | None = None


@dataclass(frozen=True)
class History:
    server: Server
    requests: tuple[Request, ...]
    evictions: tuple[int, ...] = ()
    accepted: tuple[int, ...] = (0,)


@dataclass
class Outcome:
    world: World
    jobs: list[Job]
    problems: list[str] = field(default_factory=list)


def server(
    grid: int,
    budget: int,
    *,
    page: int | None = None,
    window_page: int | None = None,
    ring: int | None = None,
    match_unit: int | None = None,
    kernel_chunk: int = 16,
    retention: int | None = 0,
    drop: bool = False,
    drop_everywhere: bool = False,
    lookahead: int = 0,
    draft_slots: int = 0,
    drafts: int = 0,
    checkpoint_step: int | None = None,
) -> Server:
    """A server from its block sizes, with the units that vLLM would derive from them."""
    page = page or grid
    groups = [CacheGroup(Role.ATTENTION, page, None, drop), CacheGroup(Role.STATE, grid, None, drop_everywhere)]
    blocks = [page, grid]
    if window_page is not None:
        groups.append(CacheGroup(Role.DRAFT, window_page, 3 * window_page // 2, drop_everywhere))
        blocks.append(window_page)
    block = lcm(*blocks, *([ring] if ring else []))
    unit = match_unit or gcd(*blocks)
    fine = grid > unit and (window_page is None or window_page == unit)
    frame = Frame(
        grid=StateGrid(grid),
        config_minimum=ConfigMinimum(min(blocks)),
        scheduler_block=SchedulerBlock(block),
        hash_unit=HashUnit(unit),
        hit_unit=HitUnit(unit if fine else block),
        kernel_chunk=KernelChunk(kernel_chunk),
        step_limit=budget,
        draft_slots=draft_slots,
        drop=drop,
        lookahead=lookahead,
        retention=retention,
        checkpoint_step=checkpoint_step,
        windowed=window_page is not None,
        states_give_back=drop_everywhere,
    )
    return Server(frame, tuple(groups), drafts)


@st.composite
def servers(draw: st.DrawFn, *, uniform: bool = False) -> Server:
    unit = draw(st.sampled_from([4, 8, 16]))
    grid = unit * draw(st.integers(1, 8))
    page = window = match = None
    if not uniform:
        page = draw(st.sampled_from([None, 2 * grid, grid // 2 if grid % 2 == 0 else None]))
        window = draw(st.sampled_from([None, None, unit, grid, 2 * unit, 3 * unit]))
        if window is None and page is None:
            match = draw(st.sampled_from([None, unit]))
    drop = draw(st.booleans())
    modules = draw(st.sampled_from([1, 1, 1, 3])) if drop else 0
    block = lcm(grid, page or grid, window or grid)
    if modules > block:
        modules = 1
    return server(
        grid,
        draw(st.integers(4, 6 * grid)),
        page=page,
        window_page=window,
        match_unit=match,
        kernel_chunk=draw(st.sampled_from([1, unit, 2 * unit, 64])),
        retention=draw(st.sampled_from([0, 0, 0, None, block, 3 * block])),
        drop=drop,
        drop_everywhere=drop and modules == 1 and draw(st.booleans()),  # vLLM finds the group of MTP modules
        lookahead=modules,
        draft_slots=draw(st.sampled_from([0, 0, 1, 3])),
        drafts=draw(st.sampled_from([0, 0, 2])),
        checkpoint_step=draw(st.sampled_from([None, None, 1, 16 if unit == 16 else 1])),
    )


@st.composite
def histories(draw: st.DrawFn, *, uniform: bool = False, rough: bool = True) -> History:
    """Requests that share prefixes in a tree, at any time, with whatever can shorten or interrupt them."""
    machine = draw(servers(uniform=uniform))
    grid = machine.frame.grid.tokens
    lengths = st.one_of(
        st.integers(1, 7 * grid),
        st.integers(1, 6).map(lambda k: k * grid),
        st.tuples(st.integers(1, 6), st.integers(-2, 2)).map(lambda t: max(1, t[0] * grid + t[1])),
    )
    stems = [draw(lengths) for _ in range(2)]
    requests = []
    for number in range(draw(st.integers(1, 5))):
        parts: list[tuple[str, int]] = []
        if draw(st.booleans()):
            stem = draw(st.integers(0, 1))
            parts.append((f"stem {stem}", draw(st.sampled_from([stems[stem], max(1, stems[stem] // 2)]))))
        if not parts or draw(st.booleans()):
            parts.append((f"own {number}", draw(lengths)))
        requests.append(
            Request(
                tuple(parts),
                outputs=draw(st.integers(1, 12)),
                arrives=draw(st.integers(0, 12)),
                trims=tuple(draw(st.lists(st.integers(1, 3 * grid), max_size=4))) if rough else (),
                preempt_after=draw(st.one_of(st.none(), st.integers(1, 8))) if rough else None,
            )
        )
    return History(
        machine,
        tuple(requests),
        evictions=tuple(draw(st.lists(st.integers(1, 40), max_size=4))) if rough else (),
        accepted=tuple(draw(st.lists(st.integers(0, machine.drafts), min_size=1, max_size=5))),
    )


def play(history: History, rule: str, *, limit: int = 4000) -> Outcome:
    """Run a history to its end under a rule, and collect what must never happen."""
    frame = history.server.frame
    counter = iter(range(10**9))
    accepted = history.accepted
    limits = Limits(drafts=history.server.drafts, accepts=lambda job, known: accepted[next(counter) % len(accepted)])
    world = World(frame, history.server.groups, make_rule(rule, frame), limits)
    jobs = [
        Job(f"r{i}", Prompt(r.parts), outputs=r.outputs, trim=_trimmer(r.trims)) for i, r in enumerate(history.requests)
    ]
    outcome = Outcome(world, jobs)
    waiting = sorted(range(len(jobs)), key=lambda i: history.requests[i].arrives)
    preempted: set[str] = set()
    for now in range(limit):
        while waiting and history.requests[waiting[0]].arrives <= now:
            world.add(jobs[waiting.pop(0)])
        if not (waiting or world.waiting or world.running):
            break
        busy = bool(world.waiting or world.running)
        step = world.step()
        if busy and not step.chunks:
            outcome.problems.append("empty step")
            break
        if now in history.evictions and world.cache.states:
            world.evict(sorted(world.cache.states)[now % len(world.cache.states)])
        for job, request in zip(jobs, history.requests, strict=True):
            due = request.preempt_after is not None and len(job.ends) >= request.preempt_after
            if due and job in world.running and job.name not in preempted:
                preempted.add(job.name)
                world.preempt(job.name)
    else:
        outcome.problems.append("never finished")
    if any(j.starved for j in jobs):
        outcome.problems.append("a chunk cut to nothing")
    if world.stale:
        outcome.problems.append(f"stale entry: {world.stale[0]}")
    if any(j.stale_reads for j in jobs):
        outcome.problems.append("stale read")
    return outcome


def _trimmer(trims: tuple[int, ...]):  # type: ignore[no-untyped-def]
    if not trims:
        return None
    left = list(trims)
    return lambda start, count: left.pop() if left else count


def reask(outcome: Outcome, request: Request, rule: str) -> tuple[int, int]:
    """(hit of the same prompt asked again, hit if every state that the cache would keep were there)."""
    world = outcome.world
    prompt = Prompt(request.parts)
    hit = world.cache.lookup(prompt.digest, len(prompt), step=-1).hit
    frame = world.frame
    ideal = Cache(frame, world.cache.groups, dict(world.cache.states), world.cache.pages)
    grid, kept = frame.grid.tokens, Kept(frame, len(prompt))
    for position in [*filter(kept.holds, range(grid, len(prompt), grid)), tail(frame, len(prompt))]:
        if position:
            digest = prompt.digest(position)
            ideal.states[digest] = StateEntry(position, Content(position, digest), -1)
    return hit, ideal.lookup(prompt.digest, len(prompt), step=-1).hit


def kernel_cuts(starts_and_ends: list[tuple[int, int]], chunk: int) -> set[int]:
    """Where the recurrent kernel's own chunks end: equal sets mean the same arithmetic."""
    cuts: set[int] = set()
    for start, end in starts_and_ends:
        cuts.update(range(start + chunk, end, chunk))
        cuts.add(end)
    return cuts


@dataclass
class Run:
    """One prefill: its chunk ends, and how many steps passed, those without a chunk included."""

    ends: list[int]
    steps: int


def run_offers(rule: str, frame: Frame, prompt: int, offers: list[int], *, limit: int = 20_000) -> Run | None:
    """One request that is offered these many tokens, over and over; None where it never ends."""
    cutter = make_rule(rule, frame)
    view, at, idle = Prefill(prompt, prompt), 0, 0
    ends: list[int] = []
    for step in range(limit):
        if at >= prompt:
            return Run(ends, step)
        offer = min(offers[step % len(offers)], frame.offer_limit, prompt - at)
        count = cutter.cut(view, at, offer)
        idle = 0 if count else idle + 1
        if idle > len(offers):
            return None
        if count:
            at += count
            ends.append(at)
    return None


def alone(machine: Server, request: Request, rule: str) -> Outcome:
    """The same request with nobody else, nothing cached and a step to itself."""
    return play(History(replace(machine), (replace(request, arrives=0, trims=(), preempt_after=None),)), rule)
