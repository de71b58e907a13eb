"""Requests that run beside the one that is measured, and proof that they did."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from statemark.client import Ask, Reply, Session


class Streams:
    """Streaming requests in the background. `decoding`: they are to outlast the measured one."""

    def __init__(self, tasks: list[asyncio.Task[None]], decoding: bool) -> None:
        self.tasks = tasks
        self.decoding = decoding

    async def end(self) -> bool:
        """Stop what still runs. True if they did what they were for: decoded to this moment, or were answered."""
        running = not any(task.done() for task in self.tasks)
        if not self.decoding:
            results = await asyncio.gather(*self.tasks, return_exceptions=True)
            return not any(isinstance(r, BaseException) for r in results)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        return running


async def start_company(session: Session, asks: Sequence[Ask], *, wait: bool) -> Streams:
    """Start them; with `wait`, return when each has given its first token."""
    begun = [asyncio.Event() for _ in asks]

    async def run(ask: Ask, event: asyncio.Event) -> None:
        try:
            stream = session.stream(ask, Reply())
            async with contextlib.aclosing(stream):
                async for _ in stream:
                    event.set()
        finally:
            event.set()

    tasks = [asyncio.create_task(run(ask, event)) for ask, event in zip(asks, begun, strict=True)]
    await asyncio.sleep(0)
    if wait:
        await asyncio.gather(*(event.wait() for event in begun))
    return Streams(tasks, wait)
