"""Work on text - tokenizing, rendering - beside the event loop, in few threads. Knows neither text nor HTTP.

A thread that has begun can't be stopped, so only a few may have: what waits is dropped when its client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TextWorkers:
    """`await workers.run(function, ...)`. Cancelled while it waits, the function is never called."""

    def __init__(self, threads: int = 2) -> None:
        self.threads = threads
        self.waiting = 0  # calls that no thread has taken up
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="statemark-text")

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        begun = False

        def call() -> T:
            nonlocal begun
            begun = True
            loop.call_soon_threadsafe(self._taken)
            return function(*arguments, **named)

        self.waiting += 1
        try:
            return await loop.run_in_executor(self._pool, call)
        except asyncio.CancelledError:
            if not begun:
                self.waiting -= 1
            raise

    def _taken(self) -> None:
        self.waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
