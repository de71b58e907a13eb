"""Fields that say how a request is treated: its id, its turn, its use of the cache, and usage while it streams."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually, running

HTTP = httpx.Client(timeout=30)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ab", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
}


def post(served: Running, path: str, status: int = 200, **fields: Any) -> Any:
    response = HTTP.post(f"{served.url}{path}", json=BODIES[path] | fields)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize("path", BODIES)
def test_request_id_names_the_answer(served: Running, path: str) -> None:
    assert post(served, path, request_id="my.run-1")["id"].endswith(
        "-my.run-1" if "completions" in path else "_my.run-1"
    )
    for bad in ("", "x" * 129, "a b", "a\nb", "é"):
        assert "request_id" in str(post(served, path, 400, request_id=bad))


def test_two_requests_of_one_id_at_once_are_refused() -> None:
    model = FakeModel()
    model.max_model_len = 10**9
    with running(lambda: model) as found:
        body = BODIES["/v1/completions"] | {"max_tokens": 10**8, "request_id": "x", "stream": True}
        with HTTP.stream("POST", f"{found.url}/v1/completions", json=body) as first:
            lines = first.iter_lines()
            next(lines)
            assert "in use" in str(post(found, "/v1/completions", 400, request_id="x"))
            assert model.aborted == []
            assert found.state.engine.held == 1
            more = [next(lines) for _ in range(200)]
            assert not any("error" in line for line in more)
        eventually(lambda: found.state.engine.held == 0)
        post(found, "/v1/completions", request_id="x")


@pytest.mark.parametrize("path", BODIES)
def test_cache_prompt_priority_and_salt_reach_the_engine(served: Running, fake: FakeModel, path: str) -> None:
    post(served, path, cache_prompt=False, priority=-3, cache_salt="mine")
    seen = fake.seen[-1]
    assert (seen.use_cache, seen.priority, seen.cache_salt) == (False, -3, "mine")
    post(served, path)
    seen = fake.seen[-1]
    assert (seen.use_cache, seen.priority, seen.cache_salt) == (True, 0, "")
    for bad in (2**31, -(2**31) - 1, 2**70, 1.5, "high"):
        assert "priority" in str(post(served, path, 400, priority=bad))


def test_a_real_engine_neither_reads_nor_writes_for_cache_prompt_false(real: Running) -> None:
    body = {"prompt": list(range(300, 340)), "max_tokens": 1, "temperature": 0}

    def cached(**fields: Any) -> int:
        response = HTTP.post(f"{real.url}/v1/completions", json=body | fields).json()
        return int(response["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(cache_prompt=False) for _ in range(2)] == [0, 0]
    assert [cached(), cached(), cached(cache_prompt=False)] == [0, 39, 0]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("each", [True, False])
def test_usage_in_streams(served: Running, path: str, include: bool, each: bool) -> None:
    options = {"include_usage": include, "continuous_usage_stats": each}
    body = BODIES[path] | {"max_tokens": 3, "stream": True, "stream_options": options}
    with HTTP.stream("POST", f"{served.url}{path}", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    frames = [json.loads(line) for line in lines]
    if include:
        last = frames.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 3
        assert "cached_tokens" in last["usage"]["prompt_tokens_details"]
    counts = [frame["usage"]["completion_tokens"] for frame in frames if frame.get("usage")]
    if each:
        assert len(counts) == len(frames)
        assert counts == sorted(counts)
        assert (counts[0], counts[-1]) == (1, 3)
    else:
        assert counts == []
        assert all(("usage" in frame) == include for frame in frames)
