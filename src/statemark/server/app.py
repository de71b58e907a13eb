"""The application: routes, the key check, errors as OpenAI has them, start and stop of the engine thread."""

from __future__ import annotations

import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from statemark import __version__
from statemark.errors import UserError
from statemark.server.async_engine import AsyncEngine
from statemark.server.chat import chat_completions
from statemark.server.completions import completions
from statemark.server.endpoint import JsonEndpoint
from statemark.server.errors import ApiError, JsonResponse, error_response, from_exception, from_status
from statemark.server.job import FailedRequestError, OverloadedError, ShuttingDownError
from statemark.server.served import ServedModel
from statemark.server.state import ServerState, Settings

log = logging.getLogger("statemark.server")


def build_app(load: Callable[[], ServedModel], settings: Settings) -> Starlette:
    """`load` runs in the engine thread once the application has started; `/health` says 503 until it is done."""
    state = ServerState(settings, AsyncEngine(load, max_waiting=settings.max_waiting))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state.engine.start()
        yield
        await state.engine.stop()

    def post(path: str, handler: Callable[..., object]) -> Route:
        endpoint = JsonEndpoint(handler, max_body_bytes=settings.max_body_bytes)  # type: ignore[arg-type]
        return Route(path, endpoint, methods=["POST"])

    app = Starlette(
        routes=[
            Route("/health", _health),
            Route("/version", _version),
            Route("/v1/models", _models),
            Route("/v1/models/{name:path}", _one_model),
            post("/v1/completions", completions),
            post("/v1/chat/completions", chat_completions),
        ],
        middleware=[Middleware(_KeyCheck, api_key=settings.api_key)] if settings.api_key else [],
        exception_handlers={
            HTTPException: _on_http_exception,
            Exception: _on_bug,
            **dict.fromkeys((ApiError, UserError, OverloadedError, ShuttingDownError, FailedRequestError), _on_known),
        },
        lifespan=lifespan,
    )
    app.state.server = state
    return app


async def _health(request: Request) -> Response:
    status = request.app.state.server.status()
    return JsonResponse({"status": status}, status_code=200 if status == "ready" else 503)


async def _version(request: Request) -> Response:
    return JsonResponse({"version": __version__})


def _model_card(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "statemark",
        "max_model_len": model.max_model_len,
    }


async def _models(request: Request) -> Response:
    model = request.app.state.server.model()
    return JsonResponse({"object": "list", "data": [_model_card(model)]})


async def _one_model(request: Request) -> Response:
    return JsonResponse(_model_card(request.app.state.server.model(request.path_params["name"])))


async def _on_known(request: Request, error: Exception) -> Response:
    return error_response(from_exception(error))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"{request.method} {request.url.path}" if error.status_code in (404, 405) else error.detail
    return error_response(from_status(error.status_code, detail, dict(error.headers or {})))


async def _on_bug(request: Request, error: Exception) -> Response:
    """Starlette raises the exception again after this answer, and uvicorn logs its traceback."""
    return error_response(from_exception(error))


class _KeyCheck:
    """Bearer token on everything under /v1; health and version stay open for probes."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self.expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                error = ApiError(
                    401, "missing or wrong API key", code="invalid_api_key", headers={"www-authenticate": "Bearer"}
                )
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)
