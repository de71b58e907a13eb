"""Tokenizing both ways, and emptying the prefix cache."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, running

HTTP = httpx.Client()


def post(served: Running, path: str, body: Any, status: int = 200) -> Any:
    response = HTTP.post(f"{served.url}{path}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_tokenize_a_text(served: Running) -> None:
    found = post(served, "/tokenize", {"prompt": "abc"})
    assert found == {"count": 3, "max_model_len": 4096, "tokens": [97, 98, 99], "token_strs": None}
    assert post(served, "/tokenize", {"prompt": "ab", "return_token_strs": True})["token_strs"] == ["a", "b"]


def test_tokenize_messages_as_the_chat_endpoint_would(served: Running, fake: FakeModel, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hello"}]
    client.chat.completions.create(model="fake", messages=messages, max_tokens=1)
    sent = list(fake.seen[-1].prompt_token_ids)
    assert post(served, "/tokenize", {"messages": messages})["tokens"] == sent
    without = post(served, "/tokenize", {"messages": messages, "add_generation_prompt": False})["tokens"]
    assert sent == [*without, *map(ord, "a:")]


@settings(deadline=None, max_examples=25)
@given(text=st.text(st.characters(max_codepoint=0x1FFF, exclude_categories=["Cs"])))
def test_detokenize_undoes_tokenize(served: Running, text: str) -> None:
    tokens = post(served, "/tokenize", {"prompt": text})["tokens"]
    assert post(served, "/detokenize", {"tokens": tokens}) == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1, 2**40]}, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_bad_requests_name_the_field(served: Running, path: str, body: Any, param: str) -> None:
    assert post(served, path, body, 400)["error"]["param"] == param


def test_a_real_tokenizer_both_ways(real: Running) -> None:
    text = "Grüße an alle, 12 + 30 = 42"
    found = post(real, "/tokenize", {"prompt": text, "return_token_strs": True})
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert post(real, "/detokenize", {"tokens": found["tokens"]}) == {"prompt": text}
    assert post(real, "/detokenize", {"tokens": [10**6]}, 400)["error"]["param"] == "tokens"


def test_after_a_reset_nothing_is_reused_and_the_numbers_are_the_same(real: Running) -> None:
    body = {"prompt": list(range(40, 90)), "max_tokens": 3, "temperature": 0, "logprobs": 5}

    def ask() -> tuple[int, Any]:
        found = post(real, "/v1/completions", body)
        return found["usage"]["prompt_tokens_details"]["cached_tokens"], found["choices"]

    first = ask()
    warm = ask()
    assert warm[0] == len(body["prompt"]) - 1  # type: ignore[arg-type]
    assert post(real, "/reset_prefix_cache", {})["marks_dropped"] > 0
    cold = ask()
    assert cold[0] == 0
    assert first[1] == warm[1] == cold[1]


def test_a_lenient_server_drops_unknown_fields_at_any_depth() -> None:
    body = {
        "messages": [{"role": "user", "content": "hi", "mood": "good"}, {"role": "user", "content": "ho", "x": {}}],
        "max_tokens": 1,
        "surprise": {"deep": [1]},
        "stream_options": {"include_usage": True, "extra": 1},
    }
    with running(FakeModel, settings=Settings(port=0, lenient=True)) as lenient:
        assert post(lenient, "/v1/chat/completions", body)["choices"]
        wrong = post(lenient, "/v1/chat/completions", body | {"max_tokens": "many"}, 400)
        assert wrong["error"]["param"] == "max_tokens"
        crowd = {"messages": [{"role": "user", "content": "hi", **{f"u{i}": 0 for i in range(1001)}}]}
        assert "more than 1000 unknown" in post(lenient, "/v1/chat/completions", crowd, 400)["error"]["message"]
