"""What an operator relies on: the access log, limits on time, comments on slow streams, ends that say what they are."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from statemark.server.endpoint import BodyRoom, EventStream, JsonEndpoint
from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually, running

HTTP = httpx.Client(timeout=30)
SHORT = {"prompt": "abc", "max_tokens": 3}
ENDLESS = {"prompt": "abc", "max_tokens": 10**8, "stream": True}


def endless() -> FakeModel:
    model = FakeModel()
    model.max_model_len = 10**9
    return model


def post(served: Running, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    return HTTP.post(f"{served.url}{path}", json=SHORT | fields)


def lines_of(log: list[str], count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(log) >= count)
    return [json.loads(line) for line in log]


# --- the access log -------------------------------------------------------------------------------------------


def test_pages_of_allowed_origins_may_use_it_and_no_others() -> None:
    """A browser asks first, without the key; and it shows a refusal to the page only if that may read it."""
    page, other = "http://localhost:3000", "http://elsewhere"
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    settings = Settings(port=0, api_key="k", allowed_origins=(page,))
    with running(FakeModel, settings=settings) as found:
        url = f"{found.url}/v1/completions"
        asked = httpx.options(url, headers={"origin": page} | wish)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, page)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        assert httpx.options(url, headers={"origin": other} | wish).status_code == 400
        for key, status in (("k", 200), ("wrong", 401)):
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": "a", "max_tokens": 1}
            answer = httpx.post(url, json=body, headers=headers | {"origin": page})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, page)
            answer = httpx.post(url, json=body, headers=headers | {"origin": other})
            assert "access-control-allow-origin" not in answer.headers
    with running(FakeModel) as closed:
        headers = httpx.get(f"{closed.url}/v1/models", headers={"origin": page}).headers
        assert not any(name.startswith("access-control") for name in headers)


def test_a_line_for_each_request_with_what_it_cost() -> None:
    log: list[str] = []
    with running(FakeModel, access_log=log.append) as found:
        post(found)
        post(found, n=2, stream=True)
        post(found, temperature=-1)
        HTTP.get(f"{found.url}/nowhere")
        HTTP.get(f"{found.url}/health")
        HTTP.get(f"{found.url}/metrics")
        plain, streamed, refused, lost = lines_of(log, 4)
    assert (plain["method"], plain["path"], plain["status"]) == ("POST", "/v1/completions", 200)
    assert plain["complete"] is True
    assert (plain["prompt_tokens"], plain["cached_tokens"], plain["output_tokens"]) == (3, 0, 3)
    assert plain["finish_reasons"] == ["length"]
    assert 0 <= plain["first_token_seconds"] <= plain["seconds"]
    assert plain["client"] == "127.0.0.1"
    assert plain["time"].endswith("+00:00")
    assert (streamed["cached_tokens"], streamed["output_tokens"]) == (2, 6)
    assert streamed["finish_reasons"] == ["length", "length"]
    assert (refused["status"], "prompt_tokens" in refused) == (400, False)
    assert (lost["status"], lost["path"]) == (404, "/nowhere")


def test_a_client_that_left_is_seen_in_the_log() -> None:
    log: list[str] = []
    with running(endless, access_log=log.append) as found:
        with HTTP.stream("POST", f"{found.url}/v1/completions", json=ENDLESS) as response:
            next(response.iter_lines())
        (line,) = lines_of(log, 1)
    assert (line["status"], line["complete"], line["finish_reasons"]) == (200, False, [])
    assert line["output_tokens"] >= 1


def test_every_answer_carries_the_clients_request_id_or_one_of_ours() -> None:
    log: list[str] = []
    with running(FakeModel, access_log=log.append) as found:
        for path in ("/v1/completions", "/nowhere"):
            given = HTTP.post(f"{found.url}{path}", json=SHORT, headers={"x-request-id": "mine-7"})
            assert given.headers["x-request-id"] == given.headers["request-id"] == "mine-7"
        for bad in ("a b", "x" * 129, ""):
            drawn = HTTP.post(f"{found.url}/v1/completions", json=SHORT, headers={"x-request-id": bad})
            assert len(drawn.headers["x-request-id"]) == 32
        names = [line["request_id"] for line in lines_of(log, 5)]
    assert names[:2] == ["mine-7"] * 2
    assert len(set(names)) == 4


# --- limits on time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waiting", [True, False], ids=["in the queue", "while writing"])
def test_a_request_may_not_take_longer_than_it_is_given(waiting: bool) -> None:
    model = endless()
    if waiting:
        model.gate.clear()
    with running(lambda: model, settings=Settings(port=0, request_timeout=0.2)) as found:
        whole = post(found, max_tokens=10**8)
        assert (whole.status_code, whole.json()["error"]["code"]) == (504, "timeout")
        text = HTTP.post(f"{found.url}/v1/completions", json=ENDLESS).text
        assert "0.2 s" in text.splitlines()[-4]
        assert text.endswith("data: [DONE]\n\n")
        eventually(lambda: found.state.engine.held == 0 and not model.requests)
        assert found.state.engine._deadlines == {}


def test_a_body_that_does_not_come_is_given_up() -> None:
    with running(FakeModel, settings=Settings(port=0, body_timeout=0.2)) as found:
        host, port = found.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as wire:
            wire.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            answer = b""
            while chunk := wire.recv(4096):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"body_timeout" in answer


def test_time_that_the_server_was_suspended_is_not_the_clients() -> None:
    """A body that came while nothing ran is in the socket when it runs again, and is still read."""
    parts = [b'{"a":', b" 1}"]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if len(parts) == 1:
            time.sleep(0.3)
            await asyncio.sleep(0.02)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        sent.append(message)

    async def handler(request: Request, body: bytes) -> Response:
        return Response(body)

    endpoint = JsonEndpoint(handler, max_body_bytes=100, body_timeout=0.1, room=BodyRoom(100))
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
    asyncio.run(endpoint(scope, receive, send))
    assert [message.get("body") for message in sent[1:]] == [b'{"a": 1}']


def test_a_slow_prompt_sends_comments_that_clients_pass_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream, "patience", 0.01)
    model = FakeModel()
    model.gate.clear()
    with running(lambda: model) as found:
        with HTTP.stream("POST", f"{found.url}/v1/completions", json=SHORT | {"stream": True}) as response:
            lines = response.iter_lines()
            comments = [line for line in (next(lines) for _ in range(6)) if line]
            assert comments == [": still working"] * 3
            model.gate.set()
            frames = [line for line in lines if line and not line.startswith(":")]
        assert len(frames) == 4
        assert frames[-1] == "data: [DONE]"


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "data: [DONE]"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10**8}, "overloaded_error"),
        ("/v1/responses", {"input": "hi"}, "response.failed"),
    ],
)
def test_shutdown_ends_streams_of_every_api_with_its_own_frame(path: str, body: dict[str, Any], last: str) -> None:
    with running(endless, settings=Settings(port=0, shutdown_grace=0)) as found:
        with HTTP.stream("POST", f"{found.url}{path}", json=body | {"stream": True}) as response:
            lines = response.iter_lines()
            next(lines)
            found.server.should_exit = True
            frames = [line for line in lines if line]
        assert last in frames[-1]
        assert "shutting down" in "".join(frames[-3:])


# --- text -----------------------------------------------------------------------------------------------------


def test_the_text_of_clients_that_left_is_not_tokenised() -> None:
    model = FakeModel()
    begun, go_on = threading.Semaphore(0), threading.Event()
    seen: list[str] = []

    def encode(text: str, **options: Any) -> list[int]:
        seen.append(text)
        begun.release()
        go_on.wait(30)
        return [1]

    model.encode = encode  # type: ignore[method-assign]
    with running(lambda: model) as found:
        host, port = found.url.removeprefix("http://").split(":")
        threads = found.state.text.threads
        wires = []
        for n in range(threads + 8):
            body = json.dumps({"prompt": f"text {n}"}).encode()
            wire = socket.create_connection((host, int(port)))
            wire.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            wires.append(wire)
        for _ in range(threads):
            assert begun.acquire(timeout=30)
        eventually(lambda: found.state.text.waiting == 8)
        for wire in wires:
            wire.close()
        eventually(lambda: found.state.text.waiting == 0)
        go_on.set()
        model.encode = FakeModel().encode  # type: ignore[method-assign]
        assert post(found).status_code == 200
    assert len(seen) == threads
