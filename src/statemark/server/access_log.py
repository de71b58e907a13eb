"""One JSON line for each HTTP request that ended, with what its job cost. Gives every request an id. Knows no route."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statemark.server.record import Record

_NAME = re.compile(rb"[A-Za-z0-9._:/-]{1,128}")


@dataclass
class Entry:
    """One HTTP request. `status` is None if it ended without an answer."""

    status: int | None = None
    complete: bool = False
    records: list[Record] = field(default_factory=list)


_current: ContextVar[Entry | None] = ContextVar("statemark_access_entry", default=None)


def belongs(record: Record) -> None:
    """Called where a job is submitted: it belongs to the HTTP request that is being answered in this context."""
    entry = _current.get()
    if entry is not None:
        entry.records.append(record)


class AccessLog:
    """`write` takes each line, without its end; None only gives ids. Paths in `quiet` are asked by machines all day."""

    quiet = frozenset({"/health", "/metrics"})

    def __init__(self, app: ASGIApp, write: Callable[[str], None] | None = None) -> None:
        self.app = app
        self.write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        name = given if _NAME.fullmatch(given) else uuid.uuid4().hex.encode()
        entry = Entry()
        begun = time.perf_counter()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
                ids = [(b"x-request-id", name), (b"request-id", name)]  # OpenAI's name for it, and Anthropic's
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            elif message["type"] == "http.response.body":
                entry.complete = not message.get("more_body", False)
            await send(message)

        token = _current.set(entry)
        try:
            await self.app(scope, receive, noting)
        finally:
            _current.reset(token)
            if self.write is not None and scope["path"] not in self.quiet:
                line = _line(scope, name, entry, time.perf_counter() - begun)
                self.write(msgspec.json.encode(line).decode())


def _line(scope: Scope, name: bytes, entry: Entry, seconds: float) -> dict[str, Any]:
    client = scope.get("client")
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "request_id": name.decode(),
        "client": client[0] if client else None,
        "method": scope["method"],
        "path": scope["path"],
        "status": entry.status,
        "complete": entry.complete,  # False: the client left, or the connection broke
        "seconds": round(seconds, 4),
    }
    for record in entry.records:
        first = record.first_token
        line |= {
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "output_tokens": record.output_tokens,
            "first_token_seconds": None if first is None else round(first, 4),
            "finish_reasons": record.finish_reasons,
        }
    return line
