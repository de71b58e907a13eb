"""When the requests of a trace come to a server on virtual time. Knows no scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from statemark.simulate.workload import Request


class Arrivals:
    """Requests in order. `together`: so many are open at once, the next is sent when one is done, whatever the trace's
    times are; None keeps to the trace's times, divided by `speed`. A request is in the queue `begin` seconds after it
    was sent. Above `longest` tokens they are `refused`.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        longest: int,
        *,
        speed: float = 1.0,
        together: int | None = None,
        begin: float = 0.0,
    ) -> None:
        self.refused = 0
        self._longest = longest
        self._speed = speed
        self._begin = begin
        # With `together`: when each of those who have no open request sends the next one, earliest first.
        self._senders = None if together is None else deque([0.0] * together)
        self._source = iter(requests)
        self._next = next(self._source, None)
        self._sent: dict[int, float] = {}  # seconds, by number

    @property
    def at(self) -> float | None:
        """When the next one is in the queue; None after the last, or while all who send have one open."""
        if self._next is None or (self._senders is not None and not self._senders):
            return None
        return (self._next.at / self._speed if self._senders is None else self._senders[0]) + self._begin

    def take(self, now: float) -> Request | None:
        """The next one, if it has come by `now`."""
        while (at := self.at) is not None and at <= now:
            request = self._next
            assert request is not None
            self._next = next(self._source, None)
            if request.prompt + request.output > self._longest:
                self.refused += 1
                continue
            self._sent[request.number] = at - self._begin
            if self._senders is not None:
                self._senders.popleft()
            return request
        return None

    def since(self, request: Request, now: float) -> float:
        """Seconds since a request was sent."""
        return now - self._sent[request.number]

    def leave(self, request: Request, now: float) -> float:
        """The same, once, at its end."""
        if self._senders is not None:
            self._senders.append(now)
        return now - self._sent.pop(request.number)

    def steps_before(self, now: float, steps: int, seconds: Callable[[int], float]) -> int:
        """How many of `steps` like steps end before the one in which the next request comes; `seconds` that so many
        take."""
        if (at := self.at) is None:
            return steps
        due, low, high = at - now, 0, steps
        while low < high:  # the step in which it arrives is the one that comes after these
            middle = (low + high) // 2
            if seconds(middle + 1) >= due:
                high = middle
            else:
                low = middle + 1
        return low
