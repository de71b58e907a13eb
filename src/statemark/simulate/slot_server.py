"""llama.cpp's server on virtual time: a few slots, a batch of tokens a step, decodes first, then prompts by slot.

What is reused and kept is the slots' business (`slots.py`). Steps in which only decodes run are taken together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from statemark.simulate.arrivals import Arrivals
from statemark.simulate.cost import Cost
from statemark.simulate.server import Outcome
from statemark.simulate.slots import Slot, SlotCache
from statemark.simulate.workload import Request


class _Run:
    """A request in its slot. `computed` tokens are in the slot's state; `said`: tokens of its answer, 0 in prefill."""

    __slots__ = ("computed", "request", "said", "slot")

    def __init__(self, request: Request, slot: Slot, computed: int) -> None:
        self.request = request
        self.slot = slot
        self.computed = computed
        self.said = 0


class SlotServer:
    """`batch` tokens a step; requests above `longest` tokens are refused. `speed`, `together`: as `Server` has them."""

    def __init__(
        self,
        cache: SlotCache,
        cost: Cost,
        batch: int,
        longest: int,
        *,
        speed: float = 1.0,
        together: int | None = None,
    ) -> None:
        self.cache = cache
        self.outcome = Outcome()
        self._cost = cost
        self._batch = batch
        self._longest = longest
        self._speed = speed
        self._together = together
        self._now = 0.0
        self._queue: deque[Request] = deque()
        self._deferred: deque[Request] = deque()  # looked at while every slot was busy
        self._runs: list[_Run] = []  # by slot
        self._arrivals = Arrivals((), longest)

    def run(self, requests: Iterable[Request], progress: Callable[[int], None] | None = None) -> Outcome:
        self._arrivals = Arrivals(
            requests, self._longest, speed=self._speed, together=self._together, begin=self._cost.begin
        )
        done = 0
        while True:
            self._arrive()
            self._launch()
            if not self._runs:
                if self._arrivals.at is None:
                    break
                self._now = max(self._now, self._arrivals.at)
                continue
            if all(r.said for r in self._runs):
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
            self._queue.append(request)

    def _launch(self) -> None:
        while self._queue:
            request = self._queue.popleft()
            found = self.cache.begin(request)
            if found is None:
                self._deferred.append(request)
                continue
            slot, cached = found
            self._runs.append(_Run(request, slot, cached))
            self._runs.sort(key=lambda r: r.slot.number)
            self.outcome.hits[request.number] = cached

    def _decode_on(self) -> None:
        """Take all steps up to the one before an answer ends, or before the one in which the next request arrives."""
        steps = min(r.request.output - r.said for r in self._runs) - 1
        steps = self._arrivals.steps_before(self._now, steps, self._decode_seconds)
        self._now += self._decode_seconds(steps)
        self.outcome.steps += steps
        for run in self._runs:
            run.said += steps
            run.computed += steps

    def _decode_seconds(self, steps: int) -> float:
        count = len(self._runs)
        return self._cost.decode(steps, count, 1, sum(r.computed for r in self._runs), count)

    def _step(self) -> None:
        decoding = [r for r in self._runs if r.said]
        room = self._batch - len(decoding)
        new, attended = 0, float(sum(r.computed for r in decoding))
        for run in self._runs:
            if run.said or room <= 0:
                continue
            end = self.cache.chunk_end(run.slot, room)
            self.cache.run(run.slot, end)
            count = end - run.computed
            attended += count * (run.computed + count / 2)
            run.computed = end
            new += count
            room -= count
        self._now += self._cost.seconds(new + len(decoding), len(decoding), attended)
        self.outcome.steps += 1
        self.outcome.computed += new
        for run in list(self._runs):
            if run.said:
                run.computed += 1
                run.said += 1
            elif run.computed == run.request.prompt:
                run.said = 1
                self.outcome.ttft[run.request.number] = self._arrivals.since(run.request, self._now)
            if run.said == run.request.output:
                self._end(run)

    def _end(self, run: _Run) -> None:
        """The slot keeps what has been run: all but the answer's last token. One deferred request is looked at again,
        before those that wait since."""
        self.cache.end(run.slot, run.computed)
        self._runs.remove(run)
        self.outcome.whole[run.request.number] = self._arrivals.leave(run.request, self._now)
        if self._deferred:
            self._queue.appendleft(self._deferred.popleft())
