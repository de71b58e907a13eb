"""`explain_cache`: what a response says about the prefix cache, over HTTP and the real renderer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.server.live_server import Running

FIELDS = {
    "prompt_tokens", "page_match", "shared", "reused", "lost", "first_different", "turn", "role", "veto", "text",
}  # fmt: skip


def post(real: Running, path: str, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 2, "temperature": 0, "explain_cache": True, **fields}
    response = httpx.post(f"{real.url}/v1/{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def chat(real: Running, *contents: str, **fields: Any) -> dict[str, Any]:
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    return post(real, "chat/completions", messages=messages, **fields)


def test_a_chat_says_where_and_why_its_reuse_ends(real: Running) -> None:
    first = chat(real, "Be kind. " * 20, "What is blue?", cache_salt="explain")["cache"]
    assert set(first) == FIELDS
    assert (first["reused"], first["shared"], first["first_different"], first["veto"]) == (0, 0, 0, None)
    second = chat(real, "Be kind. " * 20, "What is green?", cache_salt="explain")
    got = second["cache"]
    assert got["prompt_tokens"] == second["usage"]["prompt_tokens"]
    assert got["reused"] == second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert (got["role"], got["first_different"]) == ("user", got["shared"])
    assert got["lost"] == got["shared"] - got["reused"] > 0
    assert got["veto"] == "unmarked"
    assert got["text"].startswith(f"{got['reused']} of {got['prompt_tokens']} prompt tokens reused")
    again = chat(real, "Be kind. " * 20, "What is green?", cache_salt="explain")["cache"]
    assert (again["reused"], again["first_different"], again["role"]) == (again["prompt_tokens"] - 1, None, None)


def test_a_stream_says_it_once_beside_its_first_frame(real: Running) -> None:
    body = {
        "messages": [{"role": "user", "content": "streams"}], "stream": True, "max_tokens": 3, "explain_cache": True,
        "n": 2, "seed": 1, "cache_salt": "explain-stream",
    }  # fmt: skip
    with httpx.stream("POST", f"{real.url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: {")]
    frames = [json.loads(line) for line in lines]
    assert ["cache" in frame for frame in frames] == [True] + [False] * (len(frames) - 1)
    assert frames[0]["cache"]["reused"] == 0


def test_completions_say_it_for_each_prompt(real: Running) -> None:
    answer = post(real, "completions", prompt=["one prompt", "another prompt"], n=1, cache_salt="explain-two")
    assert [choice["cache"]["reused"] for choice in answer["choices"]] == [0, 0]
    assert {choice["cache"]["role"] for choice in answer["choices"]} == {None}


def test_nobody_is_told_unasked(real: Running) -> None:
    assert "cache" not in chat(real, "a", "b", explain_cache=False)
    assert "cache" not in post(real, "completions", prompt="a", explain_cache=False)["choices"][0]


def test_a_prompt_that_had_to_be_computed_whole_has_no_lookup(real: Running) -> None:
    """Its log-probabilities need every row, so the cache isn't asked."""
    assert chat(real, "a", "b", prompt_logprobs=1)["cache"] is None


def test_another_salts_content_is_not_even_mentioned(real: Running) -> None:
    chat(real, "a secret " * 20, "b", cache_salt="explain-alice")
    got = chat(real, "a secret " * 20, "b", cache_salt="explain-bob")["cache"]
    assert (got["page_match"], got["shared"], got["reused"], got["lost"], got["veto"]) == (0, 0, 0, 0, None)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("field", ["adapter", "lora_request"])
def test_adapters_are_refused_by_name(real: Running, path: str, field: str) -> None:
    body = {"prompt": "a", field: "x"} if path == "completions" else {"messages": [], field: "x"}
    response = httpx.post(f"{real.url}/v1/{path}", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
        ("messages", {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}),
        ("responses", {"input": "hi", "max_output_tokens": 1}),
    ],
)
def test_every_api_hands_salt_and_roles_on(
    real: Running, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = real.state.model()
    rendered, added = [], []
    render, add = model.render_chat, model.add
    monkeypatch.setattr(
        model, "render_chat", lambda *a, **options: (rendered.append(options), render(*a, **options))[1]
    )
    monkeypatch.setattr(model, "add", lambda request: (added.append(request), add(request))[1])
    response = httpx.post(f"{real.url}/v1/{path}", json={**fields, "cache_salt": "mine"}, timeout=60)
    assert response.status_code == 200, response.text
    assert [options["cache_salt"] for options in rendered] == ["mine"]
    assert [request.cache_salt for request in added] == ["mine"]
    assert added[0].turn_roles[0] == "user"
    assert len(added[0].turn_roles) == len(added[0].turn_positions) + 1


@pytest.mark.parametrize("path", ["tokenize", "v1/messages/count_tokens"])
def test_counting_tokens_remembers_nothing_for_anybody(
    real: Running, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names no salt: what it left would make the same conversation quicker for others, and time would tell."""
    model = real.state.model()
    rendered: list[dict[str, Any]] = []
    render = model.render_chat
    monkeypatch.setattr(
        model, "render_chat", lambda *a, **options: (rendered.append(options), render(*a, **options))[1]
    )
    body = {"model": "tiny", "messages": [{"role": "user", "content": "whose?"}]}
    response = httpx.post(f"{real.url}/{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert [options["cache_salt"] for options in rendered] == [None]
