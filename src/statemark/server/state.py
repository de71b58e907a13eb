"""What an operator sets about the server, and the state that all routes share. Knows no field of any request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from statemark.server.async_engine import AsyncEngine
from statemark.server.errors import ApiError
from statemark.server.metrics import Metrics
from statemark.server.protocol import Struct, parse
from statemark.server.served import ServedModel
from statemark.server.text_work import TextWorkers

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator sets about the server itself."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()  # of pages in browsers that may read answers; "*" is every one
    max_body_bytes: int = 32 * 1024 * 1024
    bodies_at_once: int = 8  # of the largest size that may be on their way
    body_timeout: float = 60.0  # seconds in which a body must have come
    request_timeout: float | None = None  # seconds that an answer may take, waiting included
    max_waiting: int = 256
    normalize_system: bool = False  # see hygiene
    lenient: bool = False  # drop unknown fields of requests instead of refusing them
    shutdown_grace: float = 10.0


@dataclass(frozen=True)
class ServerState:
    """Hung on the application; every handler starts from it."""

    settings: Settings
    engine: AsyncEngine[ServedModel]
    metrics: Metrics
    text: TextWorkers = field(default_factory=TextWorkers)

    def parse(self, body: bytes, kind: type[T]) -> T:
        return parse(body, kind, lenient=self.settings.lenient)

    def status(self) -> str:
        """loading, ready, failed or draining."""
        if self.engine.draining:
            return "draining"
        if not self.engine.ready.done():
            return "loading"
        return "ready" if self.engine.backend is not None else "failed"

    def model(self, name: str | None = None) -> ServedModel:
        """The model if it is ready and called so; 503 or 404 otherwise."""
        model = self.engine.backend
        if model is None:
            raise ApiError(503, f"the model is {self.status()}", code="not_ready", headers={"retry-after": "2"})
        if name is not None and name != model.name:
            raise ApiError(
                404, f"there is no model {name!r} here; it serves {model.name!r}", param="model", code="model_not_found"
            )
        return model
