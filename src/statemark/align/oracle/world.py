"""Steps of a server: running requests first, then the queue, a budget for all; with preemption and drafts.

Runs any chunk rule against the model of tables and cache, and records what goes wrong. Knows no rule's inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from statemark.align.frame import Frame
from statemark.align.oracle.cache import Cache, CacheGroup, StateEntry
from statemark.align.oracle.prompt import Digest, Prompt
from statemark.align.oracle.publish import Publisher
from statemark.align.oracle.table import Content, StateTable
from statemark.align.positions import Prefill, export_is_possible, replay_point
from statemark.align.rules import Rule


@dataclass(frozen=True)
class Limits:
    """`drafts` are verified with every decode token; `accepts(job, known)` says how many of them hold."""

    requests: int = 256
    drafts: int = 0
    accepts: Callable[[str, int], int] = lambda job, known: 0


@dataclass(frozen=True)
class StaleEntry:
    """A cache entry that holds another state than its digest says."""

    position: int
    holds: int
    honest: bool
    job: str
    step: int


@dataclass(frozen=True)
class Chunk:
    """What one job ran in a step. `reached` is where it stands afterwards: rejected drafts don't count."""

    job: str
    start: int
    count: int
    offer: int
    reached: int
    admitted: bool

    @property
    def end(self) -> int:
        return self.start + self.count


@dataclass(frozen=True)
class Step:
    """The chunks of one step, in order."""

    chunks: tuple[Chunk, ...]


@dataclass
class Job:
    """One request. `trim(start, count)` models whatever shortens a chunk after the rule, such as an encoder."""

    name: str
    prompt: Prompt
    outputs: int = 1
    trim: Callable[[int, int], int] | None = None
    computed: int = 0
    junction: int = 0
    hits: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    starved: int = 0
    stale_reads: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.prompt.copy()

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def produced(self) -> int:
        return self.known - len(self.prompt)

    @property
    def done(self) -> bool:
        return self.produced >= self.outputs

    def view(self) -> Prefill:
        return Prefill(len(self.prompt), self.known, self.junction)


class World:
    """A server's scheduler and cache, one step at a time."""

    def __init__(self, frame: Frame, groups: Iterable[CacheGroup], rule: Rule, limits: Limits | None = None) -> None:
        self.frame = frame
        self.rule = rule
        self.limits = limits or Limits()
        self.cache = Cache(frame, tuple(groups))
        self.waiting: list[Job] = []
        self.running: list[Job] = []
        self.finished: list[Job] = []
        self.stale: list[StaleEntry] = []
        self.steps: list[Step] = []
        self._tables: dict[str, StateTable] = {}
        self._publishers: dict[str, Publisher] = {}
        self._budget = self._inputs = self._last_offer = 0
        self._advanced = False  # whether a prefill ran in this step
        self._state_group = next(g for g in self.cache.groups if g.is_state)

    def add(self, job: Job) -> Job:
        self.waiting.append(job)
        return job

    def preempt(self, name: str) -> None:
        """Put a running request back at the head of the queue, as memory pressure would."""
        job = next(j for j in self.running if j.name == name)
        self.running.remove(job)
        self._forget(job)
        job.computed = 0
        self.waiting.insert(0, job)

    def evict(self, digest: Digest) -> None:
        self.cache.states.pop(digest, None)

    def run(self, steps: int = 100_000) -> None:
        """Until all is done, or nothing moves any more."""
        idle = 0
        for _ in range(steps):
            if not (self.waiting or self.running):
                return
            idle = 0 if self.step().chunks else idle + 1
            if idle > 3:
                return

    def step(self) -> Step:
        frame = self.frame
        chunks: list[Chunk] = []
        self._budget = self._inputs = frame.step_limit
        self._advanced = False
        for job in list(self.running):
            if self._budget <= 0 or self._inputs <= frame.draft_slots:
                break
            want = job.known - job.computed
            if want == 1 and self.limits.drafts:
                want += self.limits.drafts
            count = self._cut(job, self._offer(want))
            if count:
                chunks.append(self._execute(job, count, admitted=False))
        while self.waiting and len(self.running) < self.limits.requests:
            if self._budget <= 0 or self._inputs <= frame.draft_slots:
                break
            chunk = self._admit(self.waiting[0])
            if chunk is None:
                break
            chunks.append(chunk)
        self.steps.append(Step(tuple(chunks)))
        for job in [j for j in self.running if j.done]:
            self.running.remove(job)
            self._forget(job)
            self.finished.append(job)
        return self.steps[-1]

    def _offer(self, want: int) -> int:
        threshold = self.frame.long_prefill_threshold
        if 0 < threshold < want and len(self.running) + len(self.waiting) > 1:
            want = threshold
        return min(want, self._budget, self._inputs - self.frame.draft_slots)

    def _cut(self, job: Job, offer: int) -> int:
        self._last_offer = offer
        cut = self.rule.cut_behind if self._advanced else self.rule.cut
        count = cut(job.view(), job.computed, offer)
        if not 0 <= count <= offer:
            raise AssertionError(f"{self.rule.name} returned {count} of {offer} for {job.name} at {job.computed}")
        if count == 0 and offer > 0 and not (self._advanced and self.rule.cut(job.view(), job.computed, offer)):
            job.starved += 1
        if count and job.trim is not None and job.computed < job.view().end:
            count = min(count, max(1, job.trim(job.computed, count)))
        return count

    def _admit(self, job: Job) -> Chunk | None:
        found = self.cache.lookup(job.tokens.digest, job.known, len(self.steps))
        if found.fresh:
            return None
        job.computed, job.junction = found.hit, found.junction
        count = self._cut(job, self._offer(job.known - found.hit))
        if count == 0:
            job.computed = 0
            return None
        self.waiting.pop(0)
        self.running.append(job)
        table = self._tables[job.name] = StateTable(self.frame.grid)
        publisher = self._publishers[job.name] = Publisher(self.frame, self.cache, len(job.prompt))
        job.hits.append(found.hit)
        if found.content is not None:
            right = found.content == Content(found.hit, job.tokens.digest(found.hit))
            job.stale_reads += not right
            table.resume(found.hit, Content(found.hit, job.tokens.digest(found.hit), honest=right))
            publisher.resumed_at(found.hit)
        return self._execute(job, count, admitted=True)

    def _execute(self, job: Job, count: int, *, admitted: bool) -> Chunk:
        start, end = job.computed, job.computed + count
        decoding = start >= job.view().end
        accepted = 0
        if decoding and count > 1:
            accepted = min(self.limits.accepts(job.name, job.known), count - 1)
        self._budget -= count
        self._inputs -= count + self.frame.draft_slots
        exported = None if decoding else self._export(job, start, end)
        self._publishers[job.name].run_on(len(self.steps))
        table = self._tables[job.name]
        before = table.content()
        honest = before is None or before.honest
        table.begin_step(start, end)
        real = end - (count - 1 - accepted) if decoding else end  # rejected drafts leave no trace in the state
        if real >= job.known:
            job.tokens.append(f"{job.name}'s output", real + 1 - job.known)
        if exported is not None:
            table.put(*self._exported_slot(job, exported, end, honest))
        table.advance(Content(real, job.tokens.digest(real), honest))
        if decoding and count > 1:
            boundary = self.frame.grid.floor(real)
            if boundary > start:  # the worker copies the state of an accepted position back into the boundary's column
                column = boundary // self.frame.grid.tokens - 1
                table.put(column, Content(boundary, job.tokens.digest(boundary), honest))
        finalised = min(end, start + 1) if decoding else end
        self._publish(job, table, start, finalised, end, exported)
        job.computed = real
        if not decoding:
            self._advanced = True
            job.ends.append(end)
        return Chunk(job.name, start, count, self._last_offer, real, admitted)

    def _export(self, job: Job, start: int, end: int) -> int | None:
        """The position that the kernel saves from inside this chunk, by the manager's own test: in the last chunk of a
        prefill, and with a retention interval in every chunk."""
        frame = self.frame
        if frame.retention == 0 and end < job.view().end:
            return None
        position = replay_point(end, frame.hit_unit.tokens, frame.drop)
        if not export_is_possible(frame, start, end, position, frame.grid.tokens):
            return None
        column = -(-end // frame.grid.tokens) - 2
        return position if column >= 0 and column not in self._tables[job.name].slots else None

    def _exported_slot(self, job: Job, position: int, end: int, honest: bool) -> tuple[int, Content]:
        column = -(-end // self.frame.grid.tokens) - 2
        return column, Content(position, job.tokens.digest(position), honest)

    def _publish(self, job: Job, table: StateTable, start: int, computed: int, end: int, exported: int | None) -> None:
        publisher, step = self._publishers[job.name], len(self.steps)
        publisher.attention(job.tokens, computed, job.junction)
        new: list[tuple[int, StateEntry]] = []
        group = self._state_group
        export = None if exported is None else table.slots.pop(-(-end // self.frame.grid.tokens) - 2)
        new += publisher.states(table, group, job.tokens, computed, job.junction, step)
        if exported is not None and export is not None:
            # Under its own position only, never under its column's.
            new += publisher.exported(job.tokens, export, exported, job.junction, step)
        else:
            new += publisher.state_tail(table, group, job.tokens, computed, start, job.junction, step)
        for position, entry in new:
            right = Content(position, job.tokens.digest(position))
            if entry.content != right:
                held = entry.content
                self.stale.append(StaleEntry(position, held.position, held.honest, job.name, step))

    def _forget(self, job: Job) -> None:
        self._tables.pop(job.name, None)
        self._publishers.pop(job.name, None)
