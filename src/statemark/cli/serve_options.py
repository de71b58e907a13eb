"""The flags of `serve` beside the engine's, as the server's settings. Knows nothing of what the server does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from statemark.cli.config_file import config_option
from statemark.cli.options import SizeType
from statemark.errors import ConfigurationError
from statemark.server.state import Settings


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What the flags said. Sizes in bytes, times in seconds; None is "not given" or "no limit"."""

    host: str
    port: int
    api_key: str | None
    allowed_origins: str | None
    served_model_name: str | None
    chat_template: Path | None
    max_waiting: int
    request_timeout: float | None
    max_body_size: int
    shutdown_grace: float
    lenient: bool
    normalize_system: bool
    access_log: Path | None
    log_level: str

    def settings(self) -> Settings:
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigurationError("the API key is empty", hint="give --api-key a value, or leave it out")
        return Settings(
            host=self.host,
            port=self.port,
            api_key=self.api_key,
            allowed_origins=_origins(self.allowed_origins),
            max_body_bytes=self.max_body_size,
            max_waiting=self.max_waiting,
            request_timeout=self.request_timeout,
            lenient=self.lenient,
            normalize_system=self.normalize_system,
            shutdown_grace=self.shutdown_grace,
        )


def _origins(given: str | None) -> tuple[str, ...]:
    found = tuple(origin.strip().rstrip("/") for origin in (given or "").split(",") if origin.strip())
    for origin in found:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#]+", origin):
            raise ConfigurationError(
                f"{origin!r} is no origin of a page", hint="write it like http://localhost:3000, or * for every page"
            )
    return found


_SECONDS = click.FloatRange(min=0, min_open=True)
_FLAGS: list[Callable[..., Any]] = [
    config_option,
    click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for every interface."),
    click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port; 0 takes a free one."),
    click.option("--served-model-name", metavar="NAME", help="Name that clients use.  [default: the folder's name]"),
    click.option("--api-key", help="Ask clients for this key; better given as STATEMARK_API_KEY."),
    click.option(
        "--allowed-origins",
        metavar="ORIGINS",
        help="Pages in browsers that may read answers, such as http://localhost:3000; commas between several.",
    ),
    click.option(
        "--chat-template",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Jinja file to use instead of the model's own template.",
    ),
    click.option(
        "--max-waiting", type=click.IntRange(min=0), default=256, help="Sequences that may wait; more get status 429."
    ),
    click.option("--request-timeout", type=_SECONDS, help="Seconds that a request may take, waiting included."),
    click.option("--max-body-size", type=SizeType(), default="32MiB", help="Bytes that a request's body may have."),
    click.option(
        "--shutdown-grace", type=click.FloatRange(min=0), default=10.0, help="Seconds that answers get to finish."
    ),
    click.option("--lenient", is_flag=True, help="Ignore unknown fields of requests instead of refusing them."),
    click.option(
        "--normalize-system",
        is_flag=True,
        help="Set the values to zeros that a coding agent puts into its system prompt anew each time.",
    ),
    click.option(
        "--access-log",
        type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
        metavar="FILE",
        help="Write a JSON line for each request; - is stdout.",
    ),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning", help="What to tell."
    ),
]


def serve_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags; the command receives them as one `serving: ServeOptions`."""

    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        serving = ServeOptions(**{name: values.pop(name) for name in ServeOptions.__dataclass_fields__})
        return function(serving=serving, **values)

    for flag in reversed(_FLAGS):
        wrapper = flag(wrapper)
    return wrapper
