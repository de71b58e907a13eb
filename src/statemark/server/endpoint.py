"""ASGI endpoints that take a JSON body: size limit, disconnects, server-sent events. Knows no field and no engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statemark.server.errors import ApiError

_STANDSTILL = 2.0  # seconds

Handler = Callable[[Request, bytes], Awaitable[Response]]


@dataclass
class BodyRoom:
    """Bytes that the bodies which are being received may take together, however many connections there are."""

    limit: int
    used: int = 0

    def take(self, size: int) -> None:
        self.used += size
        if self.used > self.limit:
            raise ApiError(
                429,
                "too many bytes of requests are on their way; try again shortly",
                code="overloaded",
                headers={"retry-after": "1", "connection": "close"},
            )


class JsonEndpoint:
    """Runs `handler(request, body)` and sends its answer, and cancels both the moment that the client is gone."""

    def __init__(self, handler: Handler, *, max_body_bytes: int, body_timeout: float, room: BodyRoom) -> None:
        self.handler = handler
        self.room = room
        self.body_timeout = body_timeout
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            body = await self._read_in_time(request)
        except TimeoutError:
            text = f"the body did not come within {self.body_timeout:g} s"
            raise ApiError(408, text, code="body_timeout", headers={"connection": "close"}) from None
        if body is None:
            return
        work = asyncio.create_task(self._answer(request, body, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # raises what the handler raised, for the application's error handlers
        finally:
            gone.cancel()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await work

    async def _answer(self, request: Request, body: bytes, send: Send) -> None:
        response = await self.handler(request, body)
        await response(request.scope, request.receive, send)

    async def _read_in_time(self, request: Request) -> bytes | None:
        """TimeoutError where the body doesn't come. Time that this process was suspended doesn't count against the
        client: what came meanwhile is in the socket, and a little longer is enough to see it."""
        loop = asyncio.get_running_loop()
        longer = min(self.body_timeout, _STANDSTILL)
        async with asyncio.timeout(None) as limit:
            late = loop.call_later(self.body_timeout, lambda: limit.reschedule(loop.time() + longer))
            try:
                return await self._read(request)
            finally:
                late.cancel()

    async def _read(self, request: Request) -> bytes | None:
        """The body, or None if the client left while sending it. A 413 closes the connection: the rest is unread."""
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.max_body_bytes:
            raise self._too_large(length)
        chunks: list[bytes] = []
        size = 0
        try:
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                size += len(chunk)
                self.room.take(len(chunk))
                if size > self.max_body_bytes:
                    raise self._too_large(f"more than {self.max_body_bytes}")
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
        finally:
            self.room.used -= size

    def _too_large(self, size: str) -> ApiError:
        return ApiError(
            413,
            f"the body has {size} bytes; this server takes at most {self.max_body_bytes}",
            code="body_too_large",
            headers={"connection": "close"},
        )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def sse(data: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def named_event(data: dict[str, Any]) -> bytes:
    """An event that is named as its own `type`, as Anthropic's API and OpenAI's newer one have it."""
    return f"event: {data['type']}\n".encode() + sse(data)


DONE = b"data: [DONE]\n\n"


KEEP_ALIVE = b": still working\n\n"  # a comment, which clients pass over


class EventStream(Response):
    """Sends each frame as it comes. `close` runs whatever happens, even if no frame was ever asked for.

    After `patience` seconds without a frame it sends a comment, so that nobody between takes the silence of a long
    prompt for a dead connection.
    """

    patience = 10.0

    def __init__(self, frames: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-cache"})
        del self.headers["content-length"]
        self.frames = frames
        self.close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with contextlib.aclosing(self.frames) as frames:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for frame in self._with_comments(frames):
                    await send({"type": "http.response.body", "body": frame, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self.close()

    async def _with_comments(self, frames: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        while True:
            coming = asyncio.ensure_future(anext(frames, None))
            try:
                while not (await asyncio.wait({coming}, timeout=self.patience))[0]:
                    yield KEEP_ALIVE
            finally:
                coming.cancel()  # without effect on one that is there
                await asyncio.wait({coming})  # a generator can only be closed once nobody waits in it
            frame = coming.result()
            if frame is None:
                return
            yield frame
