"""Binds the port, runs uvicorn, and ends well: what runs may finish, the rest gets an error frame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from statemark.errors import ConfigurationError
from statemark.server.served import ServedModel
from statemark.server.state import ServerState, Settings

KEEP_ALIVE = 120  # seconds
"""How long a connection may be idle. Longer than clients and proxies keep theirs (httpx 5 s, nginx 60 s, Go 90 s): the
side that closes first must be the one that sends next, or a request meets a connection that is just being closed."""


def bind(settings: Settings) -> socket.socket:
    """A listening socket, or the error that says what is in the way."""
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
        # Accepted sockets inherit it. asyncio sets it only where a socket names its protocol, which these don't; then
        # a streamed token may wait 40 ms for the acknowledgement of the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        reason = str(error)
        if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno is not None:
            reason = os.strerror(error.errno)  # the error's own words say the address once more
        raise ConfigurationError(
            f"can't listen on {settings.host}:{settings.port}: {reason}",
            hint="choose another --port or --host; --port 0 takes a free one",
        ) from None


class Server(uvicorn.Server):
    """uvicorn, with a drain before its shutdown and an end when the model can't be loaded."""

    def __init__(self, app: Starlette, on_ready: Callable[[ServedModel], None] = lambda model: None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="on",
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=2,  # for connections that don't close after their last frame
            )
        )
        self.state: ServerState = app.state.server
        self.on_ready = on_ready
        self.failure: BaseException | None = None
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._watch_loading())

    async def _watch_loading(self) -> None:
        try:
            self.on_ready(await asyncio.shield(self.state.engine.ready))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.failure = error
            self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        # The sockets still listen: late comers get a 503 instead of a refused connection.
        await self.state.engine.drain(self.state.settings.shutdown_grace, hurry=lambda: self.force_exit)
        await super().shutdown(sockets)
        if self.force_exit:  # uvicorn leaves the application hanging then, which ends in a traceback
            await self.lifespan.shutdown()


def serve(app: Starlette, listener: socket.socket, on_ready: Callable[[ServedModel], None]) -> None:
    """Run until a signal, which uvicorn raises again once it has shut down. Raises what loading raised."""
    server = Server(app, on_ready)
    server.run(sockets=[listener])
    if server.failure is not None:
        raise server.failure
