"""Whether a cut may be trusted on one frame: a short series of requests through the oracle, and what went wrong.

Takes any cut, also one that is wrapped in a server's own scheduler class. Knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from statemark.align.frame import Frame
from statemark.align.oracle import Cache, CacheGroup, Content, Job, Limits, Prompt, World
from statemark.align.oracle.cache import StateEntry
from statemark.align.positions import Kept, Prefill, tail

_STEPS = 2000  # of one world; a series that needs more is itself a fault


class Cutter(Protocol):
    """What is tested: a rule, or whatever stands in its place."""

    name: str
    frame: Frame

    def cut(self, request: Prefill, start: int, offer: int) -> int: ...

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int: ...


@dataclass(frozen=True)
class _Series:
    """Jobs that run one after another, or together, beside others that decode."""

    name: str
    prompts: tuple[Prompt, ...]
    together: bool = False
    decoding: int = 0


def faults(
    cutter: Cutter,
    groups: Sequence[CacheGroup],
    *,
    longest: int,
    drafts: int = 0,
    same_chunks: bool = False,
) -> tuple[str, ...]:
    """What goes wrong under this cut; empty where nothing does.

    Prompts are at most `longest` tokens. `same_chunks` asks that a prompt's chunk ends past a hit be those of its cold
    run, which is what the rule `exact` promises of a prompt that has the step to itself.
    """
    found: list[str] = []
    for series in _series(cutter.frame, longest):
        try:
            found += (f"{series.name}: {problem}" for problem in _play(cutter, groups, series, drafts, same_chunks))
        except AssertionError as error:  # the oracle refuses a cut outside its offer
            found.append(f"{series.name}: {error}")
    return tuple(dict.fromkeys(found))


def _series(frame: Frame, longest: int) -> Iterator[_Series]:
    grid, unit = frame.grid.tokens, frame.hit_unit.tokens
    lengths = (grid - 1, grid, grid + 1, 2 * grid, 2 * grid + 17, 3 * unit + 100, 5 * grid + 100)
    asked = [Prompt([(f"own {n}", length)]) for n, length in enumerate(lengths) if 0 < length <= longest]
    if not asked:
        asked = [Prompt([("own", longest)])]
    yield _Series("asked again", tuple(p for prompt in asked for p in (prompt, prompt)))
    trunk = min(5 * grid + 100, longest)
    siblings = [Prompt([("trunk", trunk)])]
    for shared in (grid, 2 * grid + 17, 4 * grid):
        if shared < trunk:
            own = min(grid + 50, longest - shared)
            siblings += [Prompt([("trunk", shared), (f"{shared} {n}", own)]) for n in range(3)]
    yield _Series("siblings", tuple(siblings))
    count = min(frame.step_limit // (2 * grid) + 2, 12)  # enough that a step can't take them all
    crowd = tuple(Prompt([(f"crowd {n}", min(2 * grid + 5 * n + 1, longest))]) for n in range(count))
    yield _Series("beside running requests", (*crowd, crowd[0]), together=True, decoding=3)


def _play(
    cutter: Cutter, groups: Sequence[CacheGroup], series: _Series, drafts: int, same_chunks: bool
) -> Iterator[str]:
    frame = cutter.frame
    world = World(frame, groups, cutter, Limits(drafts=drafts, accepts=lambda job, known: known % (drafts + 1)))
    mates = [
        world.add(Job(f"decoding {n}", Prompt([(f"mate {n}", 3)]), outputs=_STEPS)) for n in range(series.decoding)
    ]
    if mates and not _admit(world, len(mates)):
        return  # a budget too small for company; the other series say what there is to say
    outputs = max(2, frame.lookahead + 1)
    jobs = [Job(f"{series.name} {n}", prompt, outputs=outputs) for n, prompt in enumerate(series.prompts)]
    for batch in [jobs] if series.together else [[job] for job in jobs]:
        hits = [_ideal(world, job.prompt) for job in batch]
        for job in batch:
            world.add(job)
        if not _finish(world, batch):
            yield "a prompt never ends"
            return
        if series.together:
            continue
        job = batch[0]
        if job.hits[0] != hits[0]:
            yield f"a prompt of {len(job.prompt)} tokens reuses {job.hits[0]} of {hits[0]}"
        if same_chunks and job.hits[0]:
            cold = _cold_ends(cutter, groups, job.prompt)
            if [e for e in cold if e > job.hits[0]] != job.ends:
                yield f"a prompt of {len(job.prompt)} tokens ends its chunks at {cold} when cold, {job.ends} when not"
    if any(job.starved for job in (*jobs, *mates)):
        yield "a chunk is cut to nothing"
    for entry in world.stale[:1]:
        yield f"the entry for {entry.position} holds the state after {entry.holds}"
    if any(job.stale_reads for job in jobs):
        yield "a request resumes from such an entry"


def _cold_ends(cutter: Cutter, groups: Sequence[CacheGroup], prompt: Prompt) -> list[int]:
    world = World(cutter.frame, groups, cutter)
    job = world.add(Job("cold", prompt))
    world.run(_STEPS)
    return job.ends


def _admit(world: World, count: int) -> bool:
    for _ in range(3 * count):
        world.step()
    return len(world.running) == count


def _finish(world: World, jobs: Sequence[Job]) -> bool:
    for _ in range(_STEPS):
        if all(job.done for job in jobs):
            return True
        if not world.step().chunks:
            return False
    return False


def _ideal(world: World, prompt: Prompt) -> int:
    """The hit if every state that the cache was meant to keep of the earlier prompts were there."""
    ideal = Cache(world.frame, world.cache.groups, dict(world.cache.states), world.cache.pages)
    grid = world.frame.grid.tokens
    for job in world.finished:
        kept = Kept(world.frame, len(job.prompt), job.junction)
        spots = [*filter(kept.holds, range(grid, len(job.prompt), grid)), tail(world.frame, len(job.prompt))]
        for position in spots:
            if position:
                digest = job.prompt.digest(position)
                ideal.states.setdefault(digest, StateEntry(position, Content(position, digest), -1))
    return ideal.lookup(prompt.digest, len(prompt), step=-1).hit
