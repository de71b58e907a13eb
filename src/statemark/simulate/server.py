"""A server on virtual time: a queue, running requests, a budget of tokens a step. What is cached, backends know.

Steps in which every running request decodes are taken together, so that time passes from one event to the next. A
decoding request is looked at only where its backend wants to see it: at multiples of `unit` tokens, and at its end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil

from statemark.errors import IntegrityError
from statemark.simulate.arrivals import Arrivals
from statemark.simulate.backend import Backend, Job, Start
from statemark.simulate.cost import Cost
from statemark.simulate.workload import Request


@dataclass(frozen=True)
class Limits:
    """`step` tokens a step, `requests` at once. `slots`: a drafter's places beside every scheduled request. With
    drafts a request takes `width` tokens of a decode step and goes on by `pace`."""

    step: int = 2048
    requests: int = 256
    slots: int = 0
    width: int = 1
    pace: float = 1.0
    long_prefill: int = 0
    longest: int = 1 << 40  # prompt and answer of one request


@dataclass
class Outcome:
    """What became of the requests, by number: seconds, and tokens taken from the cache."""

    ttft: dict[int, float] = field(default_factory=dict)
    whole: dict[int, float] = field(default_factory=dict)
    hits: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    computed: int = 0  # prompt tokens, those of resumed requests included
    steps: int = 0
    preempted: int = 0
    waits: int = 0  # steps in which a prompt that was next got nothing
    stuck: int = 0
    seconds: float = 0.0


class Server:
    """Runs requests to their end. `together`: at most so many at once, the next when one is done, whatever the trace's
    times are; None keeps to the trace's times, divided by `speed`."""

    def __init__(
        self, backend: Backend, cost: Cost, limits: Limits, *, speed: float = 1.0, together: int | None = None
    ) -> None:
        self.backend = backend
        self.cost = cost
        self.limits = limits
        self.outcome = Outcome()
        self._speed = speed
        self._together = together
        self._now = 0.0
        self._tick = 0
        self._admitted = 0
        self._waiting: deque[Job] = deque()
        self._prefills: list[Job] = []  # in order of admission
        self._decoding: list[int] = []  # orders, ascending
        self._jobs: dict[int, Job] = {}  # running, by order
        self._events: list[tuple[int, int]] = []
        self._sum = 0.0  # tokens behind all decoding requests at tick 0, so that their attention can be added up
        self._blocked = False
        self._arrivals = Arrivals((), limits.longest)

    # --- arrivals ---------------------------------------------------------------------------------------------

    def run(self, requests: Iterable[Request], progress: Callable[[int], None] | None = None) -> Outcome:
        self._arrivals = Arrivals(
            requests, self.limits.longest, speed=self._speed, together=self._together, begin=self.cost.begin
        )
        done = 0
        while True:
            self._arrive()
            if not self._jobs and not self._waiting:
                if self._arrivals.at is None:
                    break
                self._now = max(self._now, self._arrivals.at)
                continue
            if not self._prefills and self._jobs and (not self._waiting or self._full() or self._blocked):
                self._decode_on()
            self._step()
            if progress is not None and len(self.outcome.whole) - done >= 500:
                done = len(self.outcome.whole)
                progress(done)
        self.outcome.seconds = self._now
        self.outcome.refused = self._arrivals.refused
        return self.outcome

    def _arrive(self) -> None:
        while (request := self._arrivals.take(self._now)) is not None:
            self._waiting.append(Job(request))

    def _full(self) -> bool:
        return len(self._jobs) >= self.limits.requests

    # --- many decode steps at once ----------------------------------------------------------------------------

    def _decode_on(self) -> None:
        """Take all steps up to the one before the next event, or before the one in which a request arrives."""
        while self._events and not self._valid(self._events[0]):
            heapq.heappop(self._events)
        steps = self._events[0][0] - self._tick - 1
        if steps <= 0 or len(self._decoding) * self.limits.width > self.limits.step:
            return
        if not self._waiting:
            steps = self._arrivals.steps_before(self._now, steps, self._decode_seconds)
        self._now += self._decode_seconds(steps)
        self._tick += steps
        self.outcome.steps += steps

    def _decode_seconds(self, steps: int) -> float:
        count, pace = len(self._decoding), self.limits.pace
        return self.cost.decode(steps, count, self.limits.width, self._attended(), count * pace)

    def _attended(self) -> float:
        return self._sum + len(self._decoding) * self._tick * self.limits.pace

    def _valid(self, event: tuple[int, int]) -> bool:
        job = self._jobs.get(event[1])
        return job is not None and job.tick >= 0 and job.event == event[0]

    # --- one step ---------------------------------------------------------------------------------------------

    def _step(self) -> None:
        limits, backend = self.limits, self.backend
        now = self._tick + 1
        turn = [self._jobs[o] for o in self._due(now)] + self._prefills
        turn.sort(key=lambda j: (backend.decode_first and j.prefills, j.order))
        used, new, attended = 0, 0, 0.0
        ran: list[tuple[Job, int]] = []
        behind = False  # whether a prompt has run in this step
        ends: list[tuple[int, int]] = []  # (order, tokens used so far) of prompts, to see which decodes were left out
        gone: set[int] = set()
        for job in turn:
            if job.order in gone:
                continue
            left = self._left(job, used)
            if job.tick >= 0:
                if left < limits.width:
                    continue  # comes too late in the order: delayed below
                if self._look(job, now, gone):
                    ran.append((job, 0))
                continue
            if left <= 0:
                break
            offer = self._offer(job.known - job.computed, left)
            count = backend.cut(job, offer, behind) if offer > 0 else 0
            if count == 0:
                self.outcome.waits += 1
                continue
            if not self._room(job, count, gone):
                continue
            behind = behind or job.prefills
            ran.append((job, count))
            used += count + limits.slots
            ends.append((job.order, used))
        self._delay_late(now, ends, used)
        admitted = self._admit(used, behind, gone, ran)
        for job, count in ran:
            if count and job.order not in gone:
                new += count
                attended += count * (job.computed + count / 2)
        if not ran and not self._decoding:
            if backend.makes_way and len(self._jobs) > 1:
                self._preempt(self._jobs[max(self._jobs)], gone)
            elif not admitted:
                self._nothing_moves()
            return
        decoding = len(self._decoding)
        width = limits.width
        self._now += self.cost.seconds(new + decoding * width, decoding, attended + self._attended() * width)
        self._tick = now
        self.outcome.steps += 1
        self.outcome.computed += new
        running = len(self._jobs)
        backend.end_step()
        for job, count in ran:
            if job.order not in gone:
                self._ran(job, count)
        # A prompt that took its part of this step, or a request that has just left, makes the next step another one.
        self._blocked = not admitted and new == 0 and len(self._jobs) == running

    def _due(self, tick: int) -> list[int]:
        due = []
        while self._events and self._events[0][0] <= tick:
            event = heapq.heappop(self._events)
            if self._valid(event):
                due.append(event[1])
        return sorted(set(due))

    def _left(self, job: Job, used: int) -> int:
        """What of the step is left when it is this request's turn, as its own slots allow."""
        ahead = len(self._decoding)
        if not self.backend.decode_first or job.tick >= 0:
            ahead = bisect_left(self._decoding, job.order)
        room = self.limits.step - used - ahead * (self.limits.width + self.limits.slots)
        return room - self.limits.slots

    def _offer(self, want: int, left: int) -> int:
        cap = self.limits.long_prefill
        if 0 < cap < want and len(self._jobs) + len(self._waiting) > 1:
            want = cap
        return min(want, left)

    def _room(self, job: Job, count: int, gone: set[int]) -> bool:
        """Have the backend account for a chunk; the youngest give way where there is no room."""
        while not self.backend.run(job, count, False):
            victim = self._jobs[max(self._jobs)]
            self._preempt(victim, gone)
            if victim is job:
                return False
        return True

    def _preempt(self, job: Job, gone: set[int]) -> None:
        gone.add(job.order)
        self._catch_up(job, self._tick)
        self.backend.leave(job, False)
        self._drop(job)
        job.computed = 0
        self.outcome.preempted += 1
        self._waiting.appendleft(job)

    def _admit(self, used: int, behind: bool, gone: set[int], ran: list[tuple[Job, int]]) -> bool:
        """Take requests from the queue; True where the queue isn't stuck for what only an event can change."""
        if gone and not self.backend.makes_way:
            return True
        limits = self.limits
        while self._waiting and not self._full():
            decodes = len(self._decoding) * (limits.width + limits.slots)
            left = limits.step - used - decodes - limits.slots
            if left <= 0:
                return True
            job = self._waiting[0]
            start = self.backend.begin(job)
            if start is not Start.READY:
                return start is Start.NEXT_STEP
            count = self.backend.cut(job, self._offer(job.known - job.computed, left), behind)
            if count == 0 or not self.backend.run(job, count, True):
                if count == 0:
                    self.outcome.waits += 1
                job.computed = 0
                return False
            self._waiting.popleft()
            job.order = self._admitted
            self._admitted += 1
            self._jobs[job.order] = job
            self._prefills.append(job)
            if job.hit is None:
                job.hit = job.computed
                self.outcome.hits[job.request.number] = job.computed
            behind = behind or job.prefills
            ran.append((job, count))
            used += count + limits.slots
        return True

    def _nothing_moves(self) -> None:
        """No step will ever change anything: what blocks the queue is given up, as an operator would have to."""
        job = self._prefills[0] if self._prefills else self._waiting[0]
        if job.order in self._jobs:
            self.backend.leave(job, True)
            self._drop(job)
        else:
            self._waiting.popleft()
        self._arrivals.leave(job.request, self._now)
        self.outcome.stuck += 1

    # --- after a step -----------------------------------------------------------------------------------------

    def _ran(self, job: Job, count: int) -> None:
        if count:
            job.computed += count
            if job.computed < job.known:
                return
            self._prefills.remove(job)
            if job.said == 0:
                job.first = self._now
                self.outcome.ttft[job.request.number] = self._arrivals.since(job.request, self._now)
            job.known += 1
            job.tick = self._tick
            insort(self._decoding, job.order)
            self._sum += job.computed - self._tick * self.limits.pace
        if job.said >= job.request.output:
            self.backend.leave(job, True)
            self._drop(job)
            self.outcome.whole[job.request.number] = self._arrivals.leave(job.request, self._now)
            return
        self._plan(job, after_prompt=count > 0)

    def _plan(self, job: Job, *, after_prompt: bool) -> None:
        """When to look at a decoding request next: where it ends, or where its backend wants to see it."""
        left = job.request.output - job.said
        pace, unit = self.limits.pace, self.backend.unit
        steps = ceil(left / pace)
        if unit:
            # The step that fills a block, and the one after it, which opens the next. With a limit also the one after
            # that, and the first after a prompt: what was left behind is given back then.
            inside = job.computed % unit
            soon = inside == 0 or (self.backend.gives_back and (after_prompt or inside <= self.limits.pace))
            to_go = 1 if soon else unit - inside
            steps = min(steps, max(1, ceil(to_go / pace)))
        job.event = job.tick + steps
        heapq.heappush(self._events, (job.event, job.order))

    def _catch_up(self, job: Job, tick: int) -> None:
        """Bring a decoding request's counts up to `tick`."""
        if job.tick < 0:
            return
        moved = int((tick - job.tick) * self.limits.pace)
        moved = min(moved, job.request.output - job.said)
        job.computed += moved
        job.known += moved
        self._sum += job.tick * self.limits.pace + moved - tick * self.limits.pace
        job.tick = tick

    def _look(self, job: Job, now: int, gone: set[int]) -> bool:
        """The step `now` of a decoding request, seen by its backend."""
        self._catch_up(job, now - 1)
        self.backend.seen(job)
        left = job.request.output - job.said
        count = min(left, max(1, int(self.limits.pace)))
        if not self._room(job, count, gone):
            return False
        self._catch_up(job, now) if self.limits.pace == 1 else self._move(job, count, now)
        return True

    def _move(self, job: Job, count: int, now: int) -> None:
        job.computed += count
        job.known += count
        self._sum += count - self.limits.pace
        job.tick = now

    def _delay_late(self, now: int, ends: list[tuple[int, int]], used: int) -> None:
        """Decoding requests that come after prompts which took all of the step don't move in it."""
        limits = self.limits
        each = limits.width + limits.slots
        if len(self._decoding) * each + used <= limits.step:
            return
        for index in range(len(self._decoding) - 1, -1, -1):
            order = self._decoding[index]
            before = 0 if self.backend.decode_first else max((u for o, u in ends if o < order), default=0)
            if limits.step - index * each - before >= each:
                return
            job = self._jobs[order]
            if job.tick < now:
                job.tick += 1
                self._sum -= limits.pace
                job.event = max(job.event, now) + 1 if job.event > now else now + 1
                heapq.heappush(self._events, (job.event, job.order))

    def _drop(self, job: Job) -> None:
        if self._jobs.pop(job.order, None) is None:
            raise IntegrityError(f"request {job.request.number} left twice")
        if job.tick >= 0:
            del self._decoding[bisect_left(self._decoding, job.order)]
            self._sum -= job.computed - job.tick * self.limits.pace
            job.tick = -1
        elif job in self._prefills:
            self._prefills.remove(job)
