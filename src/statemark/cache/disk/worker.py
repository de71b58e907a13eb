"""A queue of checkpoints to write or to read, and the thread that empties it. Knows neither files nor marks.

A job borrows memory that nobody else may touch until `free` is set: after its bytes have moved, or when it gave up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(eq=False)
class Job(Generic[T]):
    """`cancelled` asks a running job to give up soon."""

    what: T
    cancelled: bool = False
    free: threading.Event = field(default_factory=threading.Event)


class Worker(Generic[T]):
    """`run(job)` does the work. Without `background` it happens where `work` is called."""

    def __init__(self, run: Callable[[Job[T]], None], *, background: bool = True) -> None:
        self._run = run
        self._queue: deque[Job[T]] = deque()
        self._active: Job[T] | None = None
        self._changed = threading.Condition()
        self.ended = False  # closed: what is put is given up at once
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._loop, name="statemark-disk", daemon=True)
            self._thread.start()

    def put(self, what: T) -> Job[T]:
        job = Job(what)
        with self._changed:
            if self.ended:
                job.free.set()
            else:
                self._queue.append(job)
                self._changed.notify_all()
        return job

    def cancel(self) -> None:
        """Give up everything; afterwards no memory is borrowed."""
        with self._changed:
            for job in self._queue:
                job.free.set()
            self._queue.clear()
            active = self._active
            if active is not None:
                active.cancelled = True
        if active is not None:
            active.free.wait()

    def wait(self, job: Job[T]) -> None:
        """Until that one has moved its bytes or was given up."""
        if self._thread is None:
            self.work()
        job.free.wait()

    def settle(self, seconds: float | None = None) -> bool:
        """Wait until everything is done, at most so long; False if it isn't."""
        if self._thread is None:
            self.work()
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and self._active is None, seconds)

    def work(self, count: int | None = None) -> None:
        """Do that many jobs here (all)."""
        while count is None or count > 0:
            with self._changed:
                if not self._queue:
                    return
                self._active = self._queue.popleft()
            self._do(self._active)
            count = count if count is None else count - 1

    def close(self) -> None:
        self.cancel()
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self.ended)
                if not self._queue:
                    return
                self._active = self._queue.popleft()
            self._do(self._active)

    def _do(self, job: Job[T]) -> None:
        try:
            self._run(job)
        except Exception:  # a job that fails is a checkpoint less
            logger.exception("a checkpoint was not moved")
        finally:
            job.free.set()
            with self._changed:
                self._active = None
                self._changed.notify_all()


def deadline(seconds: float) -> Callable[[], float]:
    """What is left of so many seconds, at least 0."""
    end = time.monotonic() + seconds
    return lambda: max(0.0, end - time.monotonic())
