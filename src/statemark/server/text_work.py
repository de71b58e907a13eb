"""Work on text - tokenizing, rendering - beside the event loop, in few threads. Knows neither text nor HTTP.

A thread that has begun can't be stopped, so only a few may have: what waits is dropped when its client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TextWorkers:
    """`await workers.run(function, ...)`. Cancelled while it waits, the function is never called."""

    def __init__(self, threads: int = 2) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="statemark-text")

    async def run(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        call = partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
