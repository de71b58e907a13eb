"""Runs the engine in one background thread: commands in by a queue, news out to one asyncio queue a job.

Only that thread touches the engine. Must not know HTTP, nor what the fields of an answer are called.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from statemark.engine.request import EngineRequest
from statemark.errors import InvalidRequestError
from statemark.server.job import FailedRequestError, Job, OverloadedError, ShuttingDownError, TimedOutError
from statemark.server.record import Unwatched, Watch

log = logging.getLogger("statemark.server")


class Delta(Protocol):
    """News of one choice of one request. `finish_reason` is None until its last; `error` says what failed."""

    @property
    def request_id(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def error(self) -> str | None: ...


class Backend(Protocol):
    """An engine with its detokenizer. Its methods are called from the engine thread only."""

    max_num_seqs: int  # sequences that run at once

    def add(self, request: EngineRequest) -> None: ...
    def abort(self, request_id: str) -> None: ...
    def has_work(self) -> bool: ...
    def step(self) -> Iterable[Delta]: ...
    def close(self) -> None: ...


B = TypeVar("B", bound=Backend)
T = TypeVar("T")


class AsyncEngine(Generic[B]):
    """Admission, the engine thread, and the way back to the event loop.

    `load` builds the backend and runs in the engine thread, so the server answers /health meanwhile.
    Beyond the choices that run at once, at most `max_waiting` wait; more is `OverloadedError`, never memory growth.
    """

    def __init__(
        self, load: Callable[[], B], *, max_waiting: int, max_seconds: float | None = None, watch: Watch | None = None
    ) -> None:
        self.watch = watch or Unwatched()
        self.max_waiting = max_waiting
        self.max_seconds = max_seconds  # that a job may take, waiting included
        self.held = 0  # choices admitted and not released; event loop only, like `jobs`
        self.jobs: set[Job] = set()
        self._deadlines: dict[Job, asyncio.TimerHandle] = {}
        self.draining = False
        self.ready: asyncio.Future[B]
        self._load = load
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._live: dict[str, Job] = {}  # by request id; engine thread only
        self._loop: asyncio.AbstractEventLoop
        self._backend: B  # engine thread only
        self._thread = threading.Thread(target=self._run, name="statemark-engine", daemon=True)

    # ---- event loop side ----

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ready = self._loop.create_future()
        self._thread.start()

    @property
    def backend(self) -> B | None:
        """The loaded backend, or None while it loads and after it failed."""
        done = self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None
        return self.ready.result() if done else None

    @property
    def max_sequences(self) -> int:
        """Choices that may be held, running or waiting; none before the model is loaded."""
        return 0 if self.backend is None else self.backend.max_num_seqs + self.max_waiting

    async def submit(self, requests: Sequence[EngineRequest]) -> Job:
        """Hand over requests that are answered together; returns once the engine took them, or raises its refusal."""
        if self.draining:
            raise ShuttingDownError
        size, limit = sum(request.params.n for request in requests), self.max_sequences
        if size > limit:
            raise InvalidRequestError(
                f"{size} sequences (prompts times n) exceed the {limit} that this server holds at once",
                hint="send fewer prompts a request or a smaller n",
                param="n",
            )
        if self.held + size > limit:
            self.watch.refused()
            raise OverloadedError
        job = Job(requests, self._release, self.watch)
        self.watch.submitted(job.record)
        self.held += size
        self.jobs.add(job)
        if self.max_seconds is not None:
            self._deadlines[job] = self._loop.call_later(self.max_seconds, job.put, TimedOutError(self.max_seconds))
        self._commands.put(lambda: self._add(job))
        try:
            await job.accepted
        except BaseException:
            job.close()
            raise
        return job

    async def run(self, function: Callable[[B], T]) -> T:
        """What `function` says of the backend, asked between two steps in the engine's thread."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def ask() -> None:
            try:
                self._call(_settle, answer, function(self._backend), None)
            except Exception as error:
                self._call(_settle, answer, None, error)

        self._commands.put(ask)
        return await answer

    def _release(self, job: Job) -> None:
        self.jobs.discard(job)
        if (deadline := self._deadlines.pop(job, None)) is not None:
            deadline.cancel()
        self.held -= sum(request.params.n for request in job.requests)
        self.watch.released(job.record)
        self._commands.put(lambda: self._drop(job))

    async def drain(self, grace: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Take nothing new, let what runs finish for `grace` seconds (or until `hurry`), then cut it off."""
        self.draining = True
        deadline = self._loop.time() + grace
        while self.jobs and self._loop.time() < deadline and not hurry():
            await asyncio.sleep(0.02)
        for job in list(self.jobs):
            job.put(ShuttingDownError())

    async def stop(self) -> None:
        """End the thread after the step that it is in; one that is still loading ends with the process."""
        self.draining = True
        self._commands.put(None)
        if self.ready.done():
            await asyncio.to_thread(self._thread.join)

    # ---- engine thread side ----

    def _run(self) -> None:
        try:
            self._backend = self._load()
        except BaseException as error:
            self._call(self._set_ready, error)
            return
        self._call(self._set_ready, self._backend)
        while self._take_commands():
            if not self._backend.has_work():
                continue
            try:
                self._deliver(self._backend.step())
            except Exception as error:
                # A step that raised doesn't say whom it concerns, so it concerns everything that the engine holds.
                log.exception("engine step failed; ending the %d requests that it held", len(self._live))
                self._fail_all(error)
        self._backend.close()

    def _take_commands(self) -> bool:
        """Run what is queued, waiting for the first command when the engine is idle. False to end the thread."""
        wait = not self._backend.has_work()
        while True:
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()
            wait = False

    def _add(self, job: Job) -> None:
        for request in job.requests:
            try:
                self._backend.add(request)
            except InvalidRequestError as error:
                self._send([(job, error)])
                return
            except Exception as error:
                log.exception("adding request %s failed", request.request_id)
                self._send([(job, FailedRequestError(repr(error)))])
                return
            self._live[request.request_id] = job
        self._call(job.accept)

    def _drop(self, job: Job) -> None:
        """Nobody waits for the job any more: abort what hasn't ended by itself."""
        for request in job.requests:
            if self._live.get(request.request_id) is job:  # an id that was refused as in use is another job's
                del self._live[request.request_id]
                self._abort(request.request_id)

    def _abort(self, request_id: str) -> None:
        try:
            self._backend.abort(request_id)
        except Exception:
            log.exception("aborting request %s failed", request_id)

    def _fail_all(self, error: Exception) -> None:
        jobs = set(self._live.values())
        for request_id in self._live:
            self._abort(request_id)
        self._live.clear()
        self._send([(job, FailedRequestError(repr(error))) for job in jobs])

    def _deliver(self, deltas: Iterable[Delta]) -> None:
        """One hop to the event loop for all news of a step."""
        news: list[tuple[Job, Any]] = []
        for delta in deltas:
            job = self._live.get(delta.request_id)
            if job is None:  # dropped meanwhile
                continue
            news.append((job, FailedRequestError(delta.error) if delta.error is not None else delta))
            if delta.finish_reason is not None and job.choice_ended(delta.request_id):
                del self._live[delta.request_id]
                if job.ended:
                    news.append((job, None))
        self._send(news)

    def _send(self, news: list[tuple[Job, Any]]) -> None:
        def put_all() -> None:
            for job, item in news:
                job.put(item)

        if news:
            self._call(put_all)

    def _set_ready(self, result: B | BaseException) -> None:
        if self.ready.done():
            return
        if isinstance(result, BaseException):
            self.ready.set_exception(result)
        else:
            self.ready.set_result(result)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            log.debug("event loop closed; news dropped")


def _settle(answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answer.done():  # cancelled: nobody waits
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
