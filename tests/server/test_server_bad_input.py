"""Every bad request is a 4xx with OpenAI's error object that names what was wrong, and the server goes on."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from statemark.server.state import Settings
from tests.server.fake_model import VOCAB
from tests.server.live_server import Running, eventually, running

COMPLETION = {"prompt": "ab", "max_tokens": 2}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def http(served: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url) as found:
        yield found


def check(response: httpx.Response, status: int, param: str | None = None, words: str = "") -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert words in error["message"]
    return error


COMPLETION_CASES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"surprise": 1}, "surprise", "unknown field: 'surprise'"),
    ({"b_unknown": 1, "a_unknown": 2}, "a_unknown", "unknown fields: 'a_unknown', 'b_unknown'"),
    ({"max_tokens": "many"}, "max_tokens", "max_tokens: expected int, got str"),
    ({"max_tokens": 1.5}, "max_tokens", "max_tokens: expected int"),
    ({"max_tokens": True}, "max_tokens", "max_tokens: expected int, got bool"),
    ({"max_tokens": 0}, "max_tokens", "max_tokens must be"),
    ({"max_tokens": -1}, "max_tokens", "-1"),
    ({"temperature": "hot"}, "temperature", "expected float"),
    ({"temperature": -0.5}, "temperature", "-0.5"),
    ({"temperature": []}, "temperature", "expected float, got array"),
    ({"top_p": 0}, "top_p", "top_p must be"),
    ({"top_p": 1.5}, "top_p", "1.5"),
    ({"top_k": -2}, "top_k", "-2"),
    ({"min_p": 2}, "min_p", "2"),
    ({"n": 0}, "n", "n must be"),
    ({"n": 65}, "n", "65 sequences (prompts times n) exceed the 64"),
    ({"n": 129}, "n", "128"),
    ({"logprobs": 21}, "logprobs", "20"),
    ({"logprobs": -1}, "logprobs", "-1"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "20"),
    ({"presence_penalty": 3}, "presence_penalty", "3"),
    ({"repetition_penalty": 0}, "repetition_penalty", "0"),
    ({"min_tokens": 3}, "min_tokens", "at most max_tokens"),
    ({"seed": 2**64}, "seed", "64 bits"),
    ({"seed": "x"}, "seed", "expected int"),
    ({"stop": 5}, "stop", "expected str | array, got int"),
    ({"stop": ["a", 5]}, "stop[1]", "expected str, got int"),
    ({"stop": [""]}, "stop", "non-empty"),
    ({"stop": ["x"] * 129}, "stop", "129 strings with 129 characters; at most 128 with 8,192"),
    ({"stop": "x" * 9000}, "stop", "1 string with 9,000 characters"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids[0]", "expected int, got str"),
    ({"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
    ({"stream": "yes"}, "stream", "expected bool"),
    ({"stream_options": {"extra": 1}}, "stream_options.extra", "unknown field: 'stream_options.extra'"),
    ({"prompt": None}, "prompt", "prompt must be"),
    ({"prompt": []}, "prompt", "none empty"),
    ({"prompt": [[]]}, "prompt", "none empty"),
    ({"prompt": ["a", 1]}, "prompt", "prompt must be"),
    ({"prompt": [1.5]}, "prompt", "prompt must be"),
    ({"prompt": [True]}, "prompt", "prompt must be"),
    ({"prompt": {"text": "a"}}, "prompt", "prompt must be"),
    ({"prompt": ""}, "prompt", "no token"),
    ({"prompt": [VOCAB]}, "prompt", f"token id {VOCAB} is outside 0 to {VOCAB - 1}"),
    ({"prompt": "x" * 5000}, "prompt", "5000 tokens > 4095 maximum"),
]


@pytest.mark.parametrize(("change", "param", "words"), COMPLETION_CASES)
def test_bad_completion_fields(http: httpx.Client, change: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        body = COMPLETION | {"stream": stream} | change
        check(http.post("/v1/completions", json=body), 400, param, words)


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}, fields]}


def tool_call(**function: Any) -> dict[str, Any]:
    return message(role="assistant", tool_calls=[{"type": "function", "function": function}])


F = {"type": "function", "function": {"name": "f"}}

CHAT_CASES: list[tuple[dict[str, Any], str | None, str]] = [
    ({"prompt": "ab"}, "prompt", "unknown field"),
    ({"messages": None}, "messages", "expected array, got null"),
    ({"messages": []}, "messages", "at least one"),
    ({"messages": "hi"}, "messages", "expected array, got str"),
    (message(), "messages[1].role", "missing field"),
    (message(role="user"), "messages[1].content", "missing"),
    (message(role="robot", content="x"), "messages[1].role", "'robot' is not one of system"),
    (message(role=1, content="x"), "messages[1].role", "expected str, got int"),
    (message(role="user", content=5), "messages[1].content", "expected str | array"),
    (message(role="user", content=[5]), "messages[1].content[0]", "expected object"),
    (message(role="user", content=[{"type": "image_url"}]), "messages[1].content", "[0] is not a text part"),
    (message(role="user", content=[{"type": "text"}]), "messages[1].content", "[0] is not a text part"),
    (message(role="user", content="x", mood="good"), "messages[1].mood", "unknown field: 'messages[1].mood'"),
    (tool_call(name="f"), "messages[1].tool_calls[0].function.arguments", "missing field"),
    (tool_call(name="f", arguments="{"), "messages[1].tool_calls[0].function.arguments", "not valid JSON"),
    ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
    ({"logprobs": 3}, "logprobs", "expected bool"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20, got 21"),
    ({"max_completion_tokens": 3}, "max_tokens", "not both"),
    ({"tool_choice": "required"}, "tool_choice", "no tools are given"),
    ({"tool_choice": "sometimes"}, "tool_choice", "'sometimes' is not supported"),
    ({"tool_choice": 5}, "tool_choice", "expected str | object"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function", "missing field"),
    ({"tool_choice": {"type": "custom", "function": {"name": "f"}}}, "tool_choice.type", "'custom' is not supported"),
    ({"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "names 'g'"),
    ({"tools": [F, F]}, "tools[1].function.name", "two tools are called 'f'"),
    ({"tools": [{"type": "retrieval"}]}, "tools[0].type", "'retrieval' is not supported"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "expected object"),
    ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "without spaces"),
    ({"tools": [{"function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters", "expected object"),
    ({"parallel_tool_calls": 1}, "parallel_tool_calls", "expected bool"),
    ({"tools": [1]}, "tools[0]", "expected object"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "expected object"),
]


@pytest.mark.parametrize(("change", "param", "words"), CHAT_CASES)
def test_bad_chat_fields(http: httpx.Client, change: dict[str, Any], param: str, words: str) -> None:
    for stream in (False, True):
        check(http.post("/v1/chat/completions", json=CHAT | {"stream": stream} | change), 400, param, words)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b'"text"',
        b"\xff\xfe{}",
        b'{"prompt": "\\ud800"}x',
        b'{"temperature": NaN, "prompt": "a"}',
        b'{"seed": 1e999, "prompt": "a"}',
        b"[" * 200_000,
        b'{"prompt":' * 100_000,
    ],
)
def test_bodies_that_are_no_json_object(http: httpx.Client, path: str, body: bytes) -> None:
    error = check(http.post(path, content=body), 400)
    assert error["code"] == "invalid_json"


def test_an_unknown_model_is_404(http: httpx.Client) -> None:
    check(http.post("/v1/completions", json=COMPLETION | {"model": "gpt"}), 404, "model", "'gpt'")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("POST", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
    ],
)
def test_wrong_paths_and_methods(http: httpx.Client, method: str, path: str, status: int) -> None:
    response = http.request(method, path)
    check(response, status, words=f"{method} {path}")
    assert (status == 405) == ("allow" in response.headers)


def test_body_limit_with_and_without_a_length(served: Running, fake: Any) -> None:
    with running(lambda: fake, settings=Settings(port=0, max_body_bytes=1000)) as small:
        fits = COMPLETION | {"prompt": "x" * 900}
        assert httpx.post(f"{small.url}/v1/completions", json=fits).status_code == 200
        for content in (b"x" * 1001, iter([b"x" * 600, b"x" * 600])):
            response = httpx.post(f"{small.url}/v1/completions", content=content)
            assert check(response, 413, words="at most 1000")["code"] == "body_too_large"
        assert httpx.post(f"{small.url}/v1/completions", json=fits).status_code == 200


def test_api_key(fake: Any) -> None:
    with running(lambda: fake, settings=Settings(port=0, api_key="s3cret")) as locked:
        url = f"{locked.url}/v1/models"
        for headers in ({}, {"authorization": "Bearer no"}, {"authorization": "s3cret"}, {"authorization": "Bearer é"}):
            encoded = {name: value.encode() for name, value in headers.items()}
            assert check(httpx.get(url, headers=encoded), 401)["code"] == "invalid_api_key"
        assert httpx.get(url, headers={"authorization": "Bearer s3cret"}).status_code == 200
        assert httpx.get(f"{locked.url}/health").status_code == 200


def test_bodies_on_their_way_take_so_much_memory_and_no_more(fake: Any) -> None:
    """Each is below the limit of one; it is their number that would fill the memory."""
    settings = Settings(port=0, max_body_bytes=2**20, bodies_at_once=2)
    body = b'{"prompt": "ab", "max_tokens": 2}'
    with running(lambda: fake, settings=settings) as found, contextlib.ExitStack() as held:
        url = httpx.URL(found.url)
        for size in (900_000, 900_000, 290_000):
            half = held.enter_context(socket.create_connection((url.host, url.port)))
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n" + b" " * size)
        room = next(route.endpoint for route in found.app.routes if route.path == "/v1/completions").room
        eventually(lambda: room.used == 2_090_000)
        response = httpx.post(f"{found.url}/v1/messages", content=body + b" " * 10_000)
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert httpx.post(f"{found.url}/v1/completions", content=body).status_code == 200
        held.close()
        eventually(lambda: room.used == 0)


def test_a_message_never_quotes_all_that_was_sent(http: httpx.Client) -> None:
    body = COMPLETION | {f"field{i}": 1 for i in range(5000)}
    assert len(check(http.post("/v1/completions", json=body), 400, "field0")["message"]) < 2100


def test_a_prompt_that_is_too_long_is_said_in_the_words_that_agents_act_upon(http: httpx.Client) -> None:
    """They shorten their conversation then, instead of giving up."""
    long = "x" * 5000
    error = http.post("/v1/completions", json=COMPLETION | {"prompt": long}).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in error["message"]
    body = {"messages": [{"role": "user", "content": long}], "max_tokens": 1}
    error = http.post("/v1/messages", json=body).json()["error"]
    assert error["type"] == "invalid_request_error"
    found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", error["message"])
    assert found is not None
    assert int(found[1]) > int(found[2]) == 4095
