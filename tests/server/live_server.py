"""A real uvicorn on a loopback port, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.applications import Starlette

from statemark.server.app import build_app
from statemark.server.run import Server, bind
from statemark.server.served import ServedModel
from statemark.server.state import ServerState, Settings


@dataclass
class Running:
    url: str
    app: Starlette
    server: Server
    thread: threading.Thread

    @property
    def state(self) -> ServerState:
        return self.app.state.server

    def stop(self) -> None:
        """As a signal would."""
        self.server.should_exit = True
        self.thread.join(timeout=30)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def running(
    load: Callable[[], ServedModel],
    *,
    settings: Settings | None = None,
    wait: bool = True,
    access_log: Callable[[str], None] | None = None,
) -> Iterator[Running]:
    """Start a server, wait until it has loaded (or only until it listens), stop it at the end."""
    settings = settings or Settings(port=0, shutdown_grace=5.0, max_waiting=32)
    app = build_app(load, settings, access_log=access_log)
    listener = bind(settings)
    ready = threading.Event()
    server = Server(app, on_ready=lambda model: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    if wait:
        assert ready.wait(timeout=60)
    found = Running(f"http://127.0.0.1:{listener.getsockname()[1]}", app, server, thread)
    try:
        yield found
    finally:
        found.stop()


def eventually(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    """Wait for something that must become true; fails the test if it doesn't. No upper bound on speed is tested."""
    waited = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    assert condition()
