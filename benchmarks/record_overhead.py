"""What `statemark record` adds to a request: the same requests direct and through the proxy, in turns, on one machine.

    python benchmarks/record_overhead.py

The server behind answers at once, so that nothing but the way there and back is timed. Prints medians in milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from statemark.record.proxy import Recorder, build_proxy
from statemark.server.run import bind
from statemark.server.state import Settings

PROMPT = list(range(8000))
EVENTS = 32


async def complete(request: Request) -> Response:
    await request.body()

    async def events() -> AsyncIterator[bytes]:
        for _ in range(EVENTS):
            yield b'data: {"choices": [{"index": 0, "text": "x"}]}\n\n'
        yield b"data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def run(app: Starlette, listener: socket.socket) -> None:
    asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).serve([listener]))


@contextlib.contextmanager
def running(app: Starlette) -> Iterator[str]:
    """In a process of its own, as servers are: threads of one would wait for each other's interpreter lock."""
    listener = bind(Settings(port=0))
    process = multiprocessing.get_context("fork").Process(target=run, args=(app, listener), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        process.terminate()
        process.join(10)


def measure(client: httpx.Client, url: str) -> tuple[float, float]:
    """Seconds to the first byte and to the last."""
    start = time.perf_counter()
    first = 0.0
    body = {"prompt": PROMPT, "max_tokens": EVENTS, "stream": True}
    with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        for _ in answer.iter_raw():
            first = first or time.perf_counter() - start
    return first, time.perf_counter() - start


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    with (
        running(app) as direct,
        running(build_proxy(direct, Recorder(io.StringIO(), b"salt"))) as proxied,
        httpx.Client() as client,
    ):
        pairs = [(measure(client, direct), measure(client, proxied)) for _ in range(rounds)][rounds // 10 :]
    for name, at in (("first byte", 0), ("last byte", 1)):
        a, b = (statistics.median(pair[side][at] for pair in pairs) * 1000 for side in (0, 1))
        added = statistics.median((pair[1][at] - pair[0][at]) * 1000 for pair in pairs)
        print(
            f"{name:11} direct {a:.2f} ms, through the proxy {b:.2f} ms, added {added:.2f} ms (median of {len(pairs)})"
        )


if __name__ == "__main__":
    main()
