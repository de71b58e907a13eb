"""The application: routes, the key check, errors in each API's own form, start and stop of the engine thread."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from statemark.errors import UserError
from statemark.server import admin, dashboard, tokens
from statemark.server.access_log import AccessLog, belongs
from statemark.server.anthropic.answer import error_body as anthropic_error
from statemark.server.anthropic.endpoints import count_tokens, messages
from statemark.server.async_engine import AsyncEngine
from statemark.server.chat import chat_completions
from statemark.server.completions import completions
from statemark.server.endpoint import BodyRoom, JsonEndpoint
from statemark.server.errors import ApiError, JsonResponse, from_exception, from_status
from statemark.server.job import FailedRequestError, OverloadedError, ShuttingDownError, TimedOutError
from statemark.server.metrics import Metrics, metrics
from statemark.server.openapi import openapi
from statemark.server.record import Record
from statemark.server.responses.endpoint import responses
from statemark.server.served import ServedModel
from statemark.server.state import ServerState, Settings

log = logging.getLogger("statemark.server")

_KNOWN = (ApiError, UserError, OverloadedError, ShuttingDownError, TimedOutError, FailedRequestError)

# Open without a key: what load balancers and monitors ask, and the page, which holds nothing and asks for the key.
_OPEN = frozenset({"/", "/health", "/version", "/metrics", "/openapi.json"})


class _Watch(Metrics):
    """Counts jobs, and tells the access log whose they are."""

    def submitted(self, record: Record) -> None:
        belongs(record)


def build_app(
    load: Callable[[], ServedModel], settings: Settings, *, access_log: Callable[[str], None] | None = None
) -> Starlette:
    """`load` runs in the engine thread once the application has started; `/health` says 503 until it is done.

    `access_log` takes a line of JSON for each request that ended.
    """
    watch = _Watch()
    engine = AsyncEngine(load, max_waiting=settings.max_waiting, max_seconds=settings.request_timeout, watch=watch)
    state = ServerState(settings, engine, watch)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state.engine.start()
        state.engine.ready.add_done_callback(lambda _: watch.loaded(state.engine.backend))
        yield
        await state.engine.stop()
        state.text.close()

    room = BodyRoom(settings.bodies_at_once * settings.max_body_bytes)

    def post(path: str, handler: Callable[..., object]) -> Route:
        endpoint = JsonEndpoint(
            handler,  # type: ignore[arg-type]
            max_body_bytes=settings.max_body_bytes,
            body_timeout=settings.body_timeout,
            room=room,
        )
        return Route(path, endpoint, methods=["POST"])

    app = Starlette(
        routes=[
            Route("/", dashboard.page),
            Route("/statemark/state", dashboard.state),
            Route("/health", admin.health),
            Route("/metrics", metrics),
            Route("/openapi.json", openapi),
            Route("/version", admin.version),
            Route("/v1/models", admin.models),
            Route("/v1/models/{name:path}", admin.one_model),
            Route("/reset_prefix_cache", admin.reset_prefix_cache, methods=["POST"]),
            post("/tokenize", tokens.tokenize),
            post("/detokenize", tokens.detokenize),
            post("/v1/completions", completions),
            post("/v1/chat/completions", chat_completions),
            post("/v1/responses", responses),
            post("/v1/messages", messages),
            post("/v1/messages/count_tokens", count_tokens),
        ],
        middleware=[
            Middleware(AccessLog, write=access_log),
            *([_cross_origin(settings.allowed_origins)] if settings.allowed_origins else []),
            *([Middleware(_KeyCheck, api_key=settings.api_key)] if settings.api_key else []),
        ],
        exception_handlers={
            HTTPException: _on_http_exception,
            Exception: _on_bug,
            **dict.fromkeys(_KNOWN, _on_known),
        },
        lifespan=lifespan,
    )
    app.state.server = state
    return app


def _cross_origin(origins: tuple[str, ...]) -> Middleware:
    """Outside the key check: a browser asks without the key whether it may send it."""
    return Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


def _error_response(path: str, error: ApiError) -> Response:
    """As the API has it that the path belongs to."""
    body = anthropic_error(error) if path.startswith("/v1/messages") else error.body()
    return JsonResponse(body, status_code=error.status, headers=error.headers)


async def _on_known(request: Request, error: Exception) -> Response:
    return _error_response(request.url.path, from_exception(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}" if error.status_code in (404, 405) else error.detail
    return _error_response(request.url.path, from_status(error.status_code, detail, dict(error.headers or {})))


async def _on_bug(request: Request, error: Exception) -> Response:
    """Starlette raises the exception again after this answer, and uvicorn logs its traceback."""
    return _error_response(request.url.path, from_exception(error))


class _KeyCheck:
    """The operator's key, as a bearer token or as Anthropic's clients send it, on all but `_OPEN`."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self.expected = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN:
            headers = dict(scope["headers"])
            scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
            given = bearer if scheme == b"Bearer" else headers.get(b"x-api-key", b"")
            if not hmac.compare_digest(given, self.expected):
                error = ApiError(
                    401, "missing or wrong API key", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
                )
                await _error_response(scope["path"], error)(scope, receive, send)
                return
        await self.app(scope, receive, send)
