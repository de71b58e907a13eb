"""Our document says what the server does, and nothing that it allows makes the server fail."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from starlette.routing import Route

from statemark.server.openapi import OPERATIONS, document
from tests.server.live_server import Running

SCHEMA = schemathesis.openapi.from_dict(document())
HTTP = httpx.Client(timeout=30)


def test_every_route_is_in_the_document_and_nothing_else(served: Running) -> None:
    routes = {
        (method.lower(), route.path.replace(":path", ""))
        for route in served.app.routes
        if isinstance(route, Route) and route.path != "/"
        for method in (route.methods or {"POST"})
        if method != "HEAD"
    }
    assert {(operation.method, operation.path) for operation in OPERATIONS} == routes


def test_it_is_served_and_its_references_lead_somewhere(served: Running) -> None:
    found = HTTP.get(f"{served.url}/openapi.json").json()
    assert found == document()

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [name for value in node.values() for name in references(value)]
        return [name for value in node for name in references(value)] if isinstance(node, list) else []

    names = {name.rsplit("/", 1)[1] for name in references(found)}
    assert names
    assert names <= set(found["components"]["schemas"])


def test_fields_are_those_that_are_read() -> None:
    schemas = document()["components"]["schemas"]
    for name in ("ChatRequest", "CompletionRequest", "MessagesRequest", "ResponsesRequest"):
        assert schemas[name]["additionalProperties"] is False
        assert {"request_id", "cache_salt", "priority"} <= set(schemas[name]["properties"])


OPS = [(result.ok().label, result.ok()) for result in SCHEMA.get_all_operations()]


@pytest.mark.slow
@pytest.mark.parametrize(("label", "operation"), OPS, ids=[label for label, _ in OPS])
def test_nothing_that_the_document_allows_is_a_500(served: Running, label: str, operation: Any) -> None:
    statuses: set[int] = set()

    @settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(case=operation.as_strategy())
    def drive(case: Any) -> None:
        response = case.call(base_url=served.url)
        statuses.add(response.status_code)
        assert response.status_code < 500, response.text

    drive()
    assert statuses
