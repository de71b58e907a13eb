"""A job: the engine requests that one HTTP request waits for, and their news on the way to it. Knows no engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from statemark.engine.request import EngineRequest
from statemark.server.record import Record, Unwatched, Watch


class OverloadedError(Exception):
    """The queue is full; try again later."""


class ShuttingDownError(Exception):
    """The server ends; the request came too late or was cut off."""


class TimedOutError(Exception):
    """The request took longer than an operator lets it; carries the seconds."""


class FailedRequestError(Exception):
    """The engine failed on this request; others go on."""


class Job:
    """Use as a context manager: leaving it, for whatever reason, aborts what still runs.

    `put` and everything but `choice_ended` belong to the event loop; `choice_ended` to the engine thread.
    """

    def __init__(
        self, requests: Sequence[EngineRequest], release: Callable[[Job], None], watch: Watch | None = None
    ) -> None:
        self.requests = tuple(requests)
        self.record = Record(self.requests)
        self._watch = watch or Unwatched()
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._release = release
        self._unfinished = {request.request_id: request.params.n for request in requests}
        self._news: asyncio.Queue[Any] = asyncio.Queue()
        self._open = True

    def accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    def put(self, item: Any) -> None:
        """One delta; None ends the job, an exception ends it as a failure."""
        if isinstance(item, Exception):
            self.record.failed |= isinstance(item, FailedRequestError)
            if not self.accepted.done():
                self.accepted.set_exception(item)
        elif item is not None:
            self._watch.news(self.record, item)
        self._news.put_nowait(item)

    def choice_ended(self, request_id: str) -> bool:
        """Count down a request's choices; True when that was its last."""
        self._unfinished[request_id] -= 1
        if self._unfinished[request_id] == 0:
            del self._unfinished[request_id]
            return True
        return False

    @property
    def ended(self) -> bool:
        return not self._unfinished

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (item := await self._news.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody listens any more. Harmless when called again."""
        if self._open:
            self._open = False
            self._release(self)
