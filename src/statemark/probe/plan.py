"""Which cells a probe runs, in which order and sizes; and what they cost before anything is asked. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd

from statemark.probe.answer import Answer
from statemark.probe.bench import Asked, Company, Cost
from statemark.probe.cells import TAIL, Cells
from statemark.probe.documents import Documents, Unit
from statemark.probe.judge import Observation

FINE = 64  # where hits may end anywhere, lengths around multiples of this are tried


@dataclass(frozen=True)
class Options:
    """`limit`: tokens of the longest prompt. `boundaries`: block boundaries whose both sides are tried."""

    limit: int = 4096
    boundaries: int = 3
    max_tokens: int = 8
    beyond_eos: bool = False
    seed: int = 0
    mates: bool = True

    def figures(self) -> dict[str, object]:
        return dict(vars(self))


Run = Callable[[], Awaitable[list[Observation]]]


@dataclass(frozen=True)
class Step:
    """A cell with its name, which is how --resume knows it again. `twin`: the same with other writers;
    `smaller`: the same for a server that has too little room for it."""

    name: str
    run: Run
    twin: Run | None = None
    smaller: Run | None = None


def first_steps(cells: Cells, options: Options) -> list[Step]:
    """What needs no grid, and shows it: prompts asked again, of lengths that have no common divisor."""
    top = options.limit
    lengths = [top - 3, top * 5 // 7 // 2 * 2, top // 2 - 5]
    steps = [Step(f"again {n}", lambda n=n: cells.again(n)) for n in lengths]  # type: ignore[misc]
    return [*steps, Step("repeat", lambda: cells.repeat(top // 2))]


def main_steps(cells: Cells, options: Options) -> list[Step]:
    top, grid = options.limit, cells.grid
    shared = max((top - 2 * TAIL) // grid * grid, grid) if grid > 1 else top - 3 * TAIL
    middle = shared // 2 // grid * grid or shared

    def written(name: str, cell: str, shared: int, tails: list[int], tail: int = TAIL, times: int = 2) -> Step:
        run = partial(cells.written, cell, shared, tails, tail, times)
        return Step(name, run, partial(run, twin=True))

    steps = [
        written("writer, two", "writer", shared, [TAIL // 2, 2 * TAIL], times=3),
        written("writer, two, shorter", "writer", max(middle - 7, 1), [TAIL, TAIL * 3], 2 * TAIL, times=3),
        Step("turns", lambda: cells.turns(max(top // 2, min(top - 3 * (TAIL * 2 + 40), 2 * grid)))),
    ]
    if options.mates:
        steps += [
            Step("mates", lambda: cells.mates(top * 3 // 4), smaller=lambda: cells.mates(top // 4, top)),
            Step("chunks", lambda: cells.chunks(top // 2, [top // 3 + 11, top // 5 + 3, 37])),
            Step("chunks, longer", lambda: cells.chunks(top - 9, [top // 7 + 5])),
        ]
    for block in boundaries(grid, options):
        steps += [written(f"boundary {n}", "boundary", n, [2 * TAIL]) for n in (block - 1, block, block + 1)]
        # The ends of both prompts on either side of it: one of them has a boundary behind it that the other lacks.
        near = block - TAIL - TAIL // 2
        steps.append(written(f"tails {block} before, after", "boundary", near, [TAIL], 2 * TAIL))
        steps.append(written(f"tails {block} after, before", "boundary", near, [2 * TAIL], TAIL))
    return steps


def boundaries(grid: int, options: Options) -> list[int]:
    """Positions of the first block boundaries, and of the last one that fits."""
    step = grid if grid >= 16 else FINE
    last = (options.limit - 3 * TAIL) // step
    at = {*range(1, min(options.boundaries, last) + 1), *([last] if last > 0 and options.boundaries else [])}
    return [k * step for k in sorted(at) if k * step > 2 * TAIL]


def grid_of(observations: Iterable[Observation]) -> int | None:
    """The tokens that all hits on own prompts are a multiple of; None without hits."""
    hits = [o.cached for o in observations if o.cell == "again" and o.cached]
    return gcd(*hits) if hits else None


# --- what it will cost ------------------------------------------------------------------------------------------


class _Nobody:
    async def end(self) -> str:
        return ""


class _Counting:
    """Stands for a server that reuses all it can: counts what it is asked and answers nothing."""

    def __init__(self, max_tokens: int) -> None:
        self.cost = Cost()
        self.max_tokens = max_tokens
        self._asked: dict[str, list[Sequence[Unit]]] = defaultdict(list)

    async def ask(self, units: Sequence[Unit], salt: str, *, cache: bool = True) -> Asked:
        cached = max((_common(units, other) for other in self._asked[salt]), default=0)
        cached = min(cached, len(units) - 1) if cache else 0
        self._asked[salt].append(units)
        self.cost.requests += 1
        self.cost.prompt_tokens += len(units)
        self.cost.completion_tokens += self.max_tokens
        self.cost.cached_tokens += cached
        return Asked(Answer(()), cached, len(units), [])

    async def company(self, prompts: Sequence[Sequence[Unit]], salt: str, tokens: int) -> Company:
        self.cost.requests += len(prompts)
        self.cost.prompt_tokens += sum(map(len, prompts))
        return _Nobody()


async def estimate(options: Options, grid: int = FINE) -> Cost:
    """Requests and tokens of a probe that finds nothing; a search for a boundary, and further writers where a server
    keeps nothing until a prefix comes again, are on top."""
    asker = _Counting(options.max_tokens)
    cells = Cells(asker, Documents(range(1 << 12), 0), grid)
    for step in (*first_steps(cells, options), *main_steps(cells, options)):
        await step.run()
    await cells.scale(options.limit)
    for salt in ("one", "one", "two"):
        await asker.ask([0] * options.limit, salt)
    return asker.cost


def duration(expected: Cost, length: int, reused: int, cold: float, warm: float) -> float:
    """Seconds of a probe of that cost, from those of a prompt of `length` tokens asked cold and then again, when
    `reused` of them came from the cache."""
    each, token = (warm, max(0.0, cold - warm) / reused) if reused else (0.0, cold / length)
    return each * expected.requests + token * (expected.prompt_tokens - expected.cached_tokens)


def cost_words(expected: Cost) -> str:
    return f"about {expected.requests} requests with {expected.prompt_tokens:,} prompt tokens"


def _common(a: Sequence[Unit], b: Sequence[Unit]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
