"""When the requests of a trace come to a server on virtual time. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from statemark.simulate.workload import Request


class Arrivals:
    """Requests in order. `together`: at most so many are open at once, the next comes when one is done, whatever the
    trace's times are; None keeps to the trace's times, divided by `speed`. Above `longest` tokens they are `refused`.
    """

    def __init__(self, requests: Iterable[Request], longest: int, *, speed: float, together: int | None) -> None:
        self.refused = 0
        self._longest = longest
        self._speed = speed
        self._together = together
        self._source = iter(requests)
        self._next = next(self._source, None)
        self._came: dict[int, float] = {}  # seconds, by number

    @property
    def at(self) -> float | None:
        """When the next one comes by the trace's times; None after the last."""
        return None if self._next is None else self._next.at / self._speed

    def take(self, now: float, opened: int) -> Request | None:
        """The next one, if it has come by `now` and `opened` others leave room for it."""
        while (request := self._next) is not None:
            at = request.at / self._speed
            if self._together is not None:
                if opened >= self._together:
                    return None
                at = now
            elif at > now:
                return None
            self._next = next(self._source, None)
            if request.prompt + request.output <= self._longest:
                self._came[request.number] = at
                return request
            self.refused += 1
        return None

    def since(self, request: Request, now: float) -> float:
        """Seconds that a request has been here."""
        return now - self._came[request.number]

    def leave(self, request: Request, now: float) -> float:
        """The same, once, at its end."""
        return now - self._came.pop(request.number)

    def steps_before(self, now: float, steps: int, seconds: Callable[[int], float]) -> int:
        """How many of `steps` like steps end before the one in which the next request comes; `seconds` that so many
        take."""
        if self._together is not None or self.at is None:
            return steps
        due, low, high = self.at - now, 0, steps
        while low < high:  # the step in which it arrives is the one that comes after these
            middle = (low + high) // 2
            if seconds(middle + 1) >= due:
                high = middle
            else:
                low = middle + 1
        return low
