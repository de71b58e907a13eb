"""Whatever comes over the wire, the server answers with an error or hangs up, and goes on serving others."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statemark.server.anthropic.protocol import MessagesRequest
from statemark.server.protocol import ChatRequest, CompletionRequest
from statemark.server.responses.protocol import ResponsesRequest
from tests.server.live_server import Running, eventually

HTTP = httpx.Client(timeout=30)
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ALIVE = {"prompt": "abc", "max_tokens": 1}

# Values that tend to be where a check was forgotten.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 2**31, 2**63, -(2**63), 2**64, 1e308, -0.0, "", "\0", "a" * 1000, [], {}, [[]], [None]]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
KINDS = (ChatRequest, CompletionRequest, MessagesRequest, ResponsesRequest)
KNOWN = sorted({name for kind in KINDS for name in kind.__struct_fields__})
ROLES = st.sampled_from(["system", "user", "assistant", "tool", "developer", "robot"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": ROLES, "content": ODD | st.text(max_size=5)}, optional={"tool_calls": JSON, "name": ODD}
    ),
    max_size=3,
)


def lives(served: Running) -> None:
    assert HTTP.post(f"{served.url}/v1/completions", json=ALIVE).status_code == 200


def address(served: Running) -> tuple[str, int]:
    host, port = served.url.removeprefix("http://").split(":")
    return host, int(port)


def refused_or_answered(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        assert response.json()["error"]["message"]


@QUICK
@given(
    path=st.sampled_from(PATHS),
    fields=st.dictionaries(st.sampled_from(KNOWN), JSON, max_size=5),
    messages=MESSAGES,
    prompt=st.text(max_size=5) | st.lists(st.integers(-2, 2**33), max_size=3),
)
@example(path="/v1/completions", fields={"echo": True}, messages=[], prompt=[-1])
@example(path="/v1/completions", fields={"echo": True}, messages=[], prompt=[2**40])
@example(path="/v1/completions", fields={"prompt": [[1, 2], [2**70]], "echo": True}, messages=[], prompt="")
def test_odd_values_of_known_fields(served: Running, path: str, fields: Any, messages: Any, prompt: Any) -> None:
    body: dict[str, Any] = {"max_tokens": 2} if "messages" in path or "completions" in path else {}
    body |= {"messages": messages} if "messages" in path or "chat" in path else {}
    body |= {"prompt": prompt} if path in ("/v1/completions", "/tokenize") else {}
    response = HTTP.post(f"{served.url}{path}", content=json.dumps(body | fields).encode())
    refused_or_answered(response)


@QUICK
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@example(path="/v1/messages", body=b'{"messages":' * 50_000)
@example(path="/v1/responses", body=b'{"input": [' + b'{"role":"user","content":' * 30_000)
@example(path="/v1/completions", body=b'{"prompt": "\\ud800", "max_tokens": 1}')
@example(path="/v1/chat/completions", body=b'{"messages": [{"role": "user", "content": "\\udfff"}], "max_tokens": 1}')
def test_bodies_of_any_kind(served: Running, path: str, body: bytes) -> None:
    refused_or_answered(HTTP.post(f"{served.url}{path}", content=body))


def test_deep_json_where_anything_may_stand(served: Running) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    text = json.dumps({"a": 1}).encode()[:-1] + b', "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    for path in PATHS:
        refused_or_answered(HTTP.post(f"{served.url}{path}", content=text))
    for field in ("tools", "chat_template_kwargs", "metadata", "guided_json", "response_format"):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, field: {"x": deep}}
        refused_or_answered(HTTP.post(f"{served.url}/v1/chat/completions", json=body))
    lives(served)


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"\0" * 100,
        b"GET /nowhere HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabc",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: \xff\xfe\r\ncontent-length: 2\r\n\r\n{}",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models/%00%ff%2e%2e/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_raw_bytes(served: Running, raw: bytes) -> None:
    with socket.create_connection(address(served), timeout=30) as wire:
        with contextlib.suppress(OSError):  # it may hang up before it was sent all of it
            wire.sendall(raw)
            wire.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # it hung up before it had read all of it
            while chunk := wire.recv(65536):
                answer += chunk
    assert not answer or answer.split(b" ", 2)[1][:1] == b"4", answer[:200]
    lives(served)


@pytest.mark.parametrize("cut", [0, 10, 60, 95])
def test_half_closed_and_broken_connections(served: Running, cut: int) -> None:
    """A client that closes its sending side in the middle of a request, and one that resets the connection."""
    body = json.dumps(ALIVE | {"stream": True, "max_tokens": 50}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    for reset in (False, True):
        with socket.create_connection(address(served), timeout=30) as wire:
            wire.sendall((head + body)[:cut])
            if reset:
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            else:
                wire.shutdown(socket.SHUT_WR)
                while wire.recv(65536):
                    pass
    eventually(lambda: served.state.engine.held == 0)
    lives(served)


def test_a_client_that_sends_byte_by_byte_is_served(served: Running) -> None:
    body = json.dumps(ALIVE).encode()
    raw = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )
    with socket.create_connection(address(served), timeout=30) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in raw:
            wire.sendall(bytes([byte]))
        answer = b""
        while chunk := wire.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("name", ["x-request-id", "user-agent", "accept", "cookie", "x-stainless-lang"])
def test_odd_headers(served: Running, name: str) -> None:
    for value in (b"", b"\xff\xfe", b"a" * 8000, "é\u2028".encode(), b"1, 2, 3"):
        response = HTTP.post(f"{served.url}/v1/completions", json=ALIVE, headers={name.encode(): value})
        assert response.status_code == 200
