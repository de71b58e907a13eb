"""/openapi.json: what this server takes, generated from the structs that it really reads. A line for each path."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from statemark import __version__
from statemark.server.anthropic.protocol import CountRequest, MessagesRequest
from statemark.server.errors import JsonResponse
from statemark.server.protocol import ChatRequest, CompletionRequest, Struct
from statemark.server.responses.protocol import ResponsesRequest
from statemark.server.tokens import DetokenizeRequest, TokenizeRequest


@dataclass(frozen=True)
class Operation:
    """`body`: what it reads, None for nothing. `streams`: whether `stream: true` answers with server-sent events."""

    method: str
    path: str
    words: str
    body: type[Struct] | None = None
    streams: bool = False


OPERATIONS = (
    Operation("post", "/v1/chat/completions", "Answer a conversation.", ChatRequest, streams=True),
    Operation("post", "/v1/completions", "Continue a text or token ids.", CompletionRequest, streams=True),
    Operation("post", "/v1/responses", "Answer a conversation of items; nothing is stored.", ResponsesRequest, True),
    Operation("post", "/v1/messages", "Answer a conversation, as Anthropic has it.", MessagesRequest, streams=True),
    Operation("post", "/v1/messages/count_tokens", "Count a conversation's tokens.", CountRequest),
    Operation("post", "/tokenize", "A text's or a conversation's tokens.", TokenizeRequest),
    Operation("post", "/detokenize", "The text of token ids.", DetokenizeRequest),
    Operation("post", "/reset_prefix_cache", "Forget every cached prefix that no request reads."),
    Operation("get", "/v1/models", "The model that is served."),
    Operation("get", "/v1/models/{name}", "The model of this name."),
    Operation("get", "/health", "200 when requests are served, 503 before and after."),
    Operation("get", "/version", "This server's version."),
    Operation("get", "/metrics", "Numbers for Prometheus."),
    Operation("get", "/openapi.json", "This document."),
    Operation("get", "/statemark/state", "The numbers that the page at / shows; no token and no text."),
)
_WHERE = "#/components/schemas/{name}"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(msgspec.Struct):
    """OpenAI's error object; paths below /v1/messages answer with Anthropic's instead."""

    error: ErrorDetail


@functools.cache
def document() -> dict[str, Any]:
    kinds = [operation.body for operation in OPERATIONS if operation.body is not None]
    schemas, components = msgspec.json.schema_components([*kinds, Error], ref_template=_WHERE)
    by_kind = dict(zip(kinds, schemas, strict=False))
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_kind, schemas[-1])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Statemark", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schemas: dict[type[Struct], Any], error: Any) -> dict[str, Any]:
    kind = "text/plain" if operation.path == "/metrics" else "application/json"
    answer: dict[str, Any] = {kind: {}}
    if operation.streams:
        answer["text/event-stream"] = {}
    shown: dict[str, Any] = {
        "summary": operation.words,
        "responses": {
            "200": {"description": "The answer.", "content": answer},
            "default": {"description": "What was wrong.", "content": {"application/json": {"schema": error}}},
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body]}}
        shown["requestBody"] = {"required": True, "content": content}
    if "{name}" in operation.path:
        shown["parameters"] = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    return shown


async def openapi(request: Request) -> Response:
    return JsonResponse(document())
