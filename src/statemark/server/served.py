"""What the routes need of a loaded model, and the state that they share. Knows no HTTP and no field names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from statemark.engine.chat import ChatPrompt
from statemark.engine.outputs import TextDelta
from statemark.server.async_engine import AsyncEngine, Backend
from statemark.server.errors import ApiError


class ServedModel(Backend, Protocol):
    """A loaded model under its public name. Everything but `Backend`'s methods may be called from any thread.

    `fingerprint` names engine version, weights, precision and instruction set: equal ones mean equal bits.
    """

    name: str
    fingerprint: str
    precision: str
    isa: str
    threads: int
    created: int
    max_model_len: int
    notices: Sequence[str]
    sampling_defaults: Mapping[str, Any]
    eos_token_ids: frozenset[int]

    def report(self) -> list[str]:
        """Lines for an operator: what runs, in which precision, and what the cache can hold."""

    def step(self) -> Iterable[TextDelta]: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def token_text(self, token_id: int) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        """`options` are those of `ChatTemplate.prompt`."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an operator sets about the server itself."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    max_waiting: int = 256
    shutdown_grace: float = 10.0


@dataclass(frozen=True)
class ServerState:
    """Hung on the application; every handler starts from it."""

    settings: Settings
    engine: AsyncEngine[ServedModel]

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
