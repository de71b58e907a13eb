"""OpenAI's error object, and which of our exceptions become which status. Knows nothing of routes or engines."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from statemark.errors import InvalidRequestError, UserError
from statemark.server.job import FailedRequestError, OverloadedError, ShuttingDownError, TimedOutError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_LONGEST = 2000  # characters of a message: some quote what was sent


class ApiError(Exception):
    """An answer that is an error: a status and the four fields that OpenAI clients read."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]} ..."
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


class JsonResponse(Response):
    """JSON written by msgspec; floats that JSON can't hold become null."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return msgspec.json.encode(content)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def from_status(status: int, detail: str | None, headers: dict[str, str] | None) -> ApiError:
    """What the router says on its own account (404, 405 ...)."""
    phrase = HTTPStatus(status).phrase.lower()
    text = phrase if detail is None or detail.lower() == phrase else f"{phrase}: {detail}"
    return ApiError(status, text, headers=headers)


def from_exception(error: Exception) -> ApiError:
    """Any exception as an error answer. Only what a caller can change is told in full."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        param, code = (error.param, error.code) if isinstance(error, InvalidRequestError) else (None, None)
        return ApiError(400, text, param=param, code=code)
    if isinstance(error, OverloadedError):
        return ApiError(429, "the queue is full; try again shortly", code="overloaded", headers={"retry-after": "1"})
    if isinstance(error, ShuttingDownError):
        return ApiError(503, "the server is shutting down", code="shutting_down", headers={"retry-after": "5"})
    if isinstance(error, TimedOutError):
        return ApiError(504, f"the request took longer than the {error} s that this server allows", code="timeout")
    if isinstance(error, FailedRequestError):
        return ApiError(500, f"the engine failed on this request: {error}", code="engine_error")
    return ApiError(500, f"the server failed on this request: {type(error).__name__}", code="internal_error")
