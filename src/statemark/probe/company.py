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

    async def end(self) -> str:
        """Stop what still runs. Empty if they did what they were for, decoded to this moment or were answered; else
        what became of them."""
        early = sum(task.done() for task in self.tasks) if self.decoding else 0
        if self.decoding:
            for task in self.tasks:
                task.cancel()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        failed = [r for r in results if isinstance(r, Exception)]
        if failed:
            return f"{len(failed)} of the other requests failed: {failed[0]}"
        return f"{early} of the other requests ended before the measured one" if early else ""


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
