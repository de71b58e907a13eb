"""The proxy: bytes through as they come, and one line of the trace after each answer. Owns no digest and no session."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from statemark.record.blocks import BLOCK, Sessions, digests_of, output_tokens, units_of

FORMAT = "statemark-trace-1"
RECORDED = ("/v1/completions", "/v1/chat/completions")
_MOST_BYTES = 32 << 20
_TAIL = 1 << 20  # of an answer's last bytes, where its usage is
# Hop by hop, or made anew: a body passes through as it was sent, still compressed if it was.
_DROPPED = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length",
            "proxy-authorization", "proxy-authenticate", "date", "server"}  # fmt: skip


@dataclass
class Exchange:
    """A request and what is kept of its answer. `tail`: the last bytes; `events`: how many were streamed."""

    request: bytes
    session: str | None
    began: float
    ended: float = 0.0
    status: int = 0
    tail: bytes = b""
    events: int = 0
    whole: bool = False


class Recorder:
    """Writes lines to `out`. `salt`: secret; two traces with one salt can be joined, others can't."""

    def __init__(self, out: TextIO, salt: bytes, encode: Callable[[str], Sequence[int]] | None = None) -> None:
        self._out, self._salt, self._encode = out, salt, encode
        self._sessions = Sessions()
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self.written = self.skipped = 0

    def now(self) -> float:
        return time.monotonic() - self._begin

    def add(self, exchange: Exchange) -> None:
        """One exchange that has ended; from any thread. What can't be told, such as several prompts, is skipped."""
        try:
            body = json.loads(exchange.request)
            if exchange.status != 200 or not exchange.whole or not isinstance(body, dict):
                raise ValueError("nothing to replay")
            units = units_of(body, self._encode)
        except (ValueError, RecursionError):
            self.skipped += 1
            return
        blocks = digests_of(units, self._salt)
        name = exchange.session if exchange.session is not None else body.get("user")
        with self._lock:
            session, think = self._sessions.add(
                blocks, exchange.began, exchange.ended, name if isinstance(name, str) else None
            )
            line: dict[str, Any] = {
                "format": FORMAT, "session": session, "at": round(exchange.began, 4), "think": round(think, 4),
                "block": BLOCK, "tokens": len(units), "blocks": blocks,
                "output": max(1, output_tokens(exchange.tail, exchange.events)),
            }  # fmt: skip
            self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._out.flush()
            self.written += 1


def build_proxy(
    url: str, recorder: Recorder, *, timeout: float = 600.0, transport: httpx.AsyncBaseTransport | None = None
) -> Starlette:
    """`url`: the server behind, without /v1. Every path and method is passed on; completions are recorded."""
    client = httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(timeout, connect=10.0),
        transport=transport,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await client.aclose()

    async def pass_on(request: Request) -> Response:
        raw = b""
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > _MOST_BYTES:
                return _error(413, f"the body has more than {_MOST_BYTES} bytes")
        headers = [(k, v) for k, v in request.headers.raw if k.decode("latin-1").lower() not in _DROPPED]
        outgoing = client.build_request(
            request.method, request.url.path, params=request.query_params, content=raw, headers=headers
        )
        recorded = request.method == "POST" and request.url.path in RECORDED
        exchange = Exchange(raw, request.headers.get("x-session-id"), recorder.now())
        try:
            answer = await client.send(outgoing, stream=True)
        except httpx.HTTPError as error:
            return _error(502, f"the server behind this proxy doesn't answer: {type(error).__name__}")
        exchange.status = answer.status_code

        async def body() -> AsyncIterator[bytes]:
            try:
                async for chunk in answer.aiter_raw():
                    if recorded:
                        exchange.events += chunk.count(b"data:")
                        exchange.tail = (exchange.tail + chunk)[-_TAIL:]
                    yield chunk
                exchange.whole = True
            finally:
                # Clients may leave at the last event without waiting for the end of the connection.
                exchange.whole = exchange.whole or exchange.tail.rstrip().endswith(b"data: [DONE]")
                exchange.ended = recorder.now()
                if recorded:  # in a thread of its own: nobody waits for digests
                    asyncio.get_running_loop().run_in_executor(None, recorder.add, exchange)
                await answer.aclose()

        response = StreamingResponse(body(), status_code=answer.status_code)
        response.raw_headers = [
            (k.lower(), v) for k, v in answer.headers.raw if k.decode("latin-1").lower() not in _DROPPED
        ]
        return response

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[Route("/{path:path}", pass_on, methods=methods)], lifespan=lifespan)


def _error(status: int, message: str) -> Response:
    error = {"message": message, "type": "server_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status_code=status)
