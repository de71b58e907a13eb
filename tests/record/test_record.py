"""The proxy passes bytes through and writes structure only; what it wrote replays with the same shared prefixes."""

from __future__ import annotations

import io
import json

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from statemark.record.blocks import BLOCK, Sessions, digests_of, output_tokens, units_of
from statemark.record.proxy import Recorder, build_proxy
from statemark.replay.readers import read_trace
from tests.client.stand_in import StandIn
from tests.server.fake_model import FakeModel
from tests.server.live_server import running

ids = st.lists(st.integers(0, 2), max_size=200)


def blocks(tokens: list[int], salt: bytes = b"s") -> list[str]:
    return digests_of([i.to_bytes(4, "little") for i in tokens], salt)


@given(ids, ids)
def test_equal_blocks_mean_equal_beginnings(a, b):
    x, y = blocks(a), blocks(b)
    for i, (p, q) in enumerate(zip(x, y, strict=False)):
        assert (p == q) == (a[: (i + 1) * BLOCK] == b[: (i + 1) * BLOCK])
    assert len(x) == len(a) // BLOCK


@given(st.lists(st.integers(0, 9), min_size=BLOCK, max_size=BLOCK))
def test_another_salt_has_nothing_in_common(tokens):
    assert blocks(tokens, b"one") != blocks(tokens, b"two")


def test_sessions_by_extension_and_by_name():
    sessions, long = Sessions(), blocks(list(range(3)) * 200)
    assert sessions.add(long[:6], 0.0, 1.0) == ("s1", 0.0)
    assert sessions.add(long[:8], 3.5, 4.0) == ("s1", 2.5)
    assert sessions.add(long[:9], 3.9, 5.0)[0] == "s2", "the last answer had not ended: another client's"
    assert sessions.add(long[:2], 9.0, 9.5)[0] == "s3", "it shares the system prompt only"
    assert sessions.add(blocks([7] * 99), 9.0, 9.5, "me")[0] == "s4"
    assert sessions.add(blocks([8] * 99), 11.0, 11.5, "me") == ("s4", 1.5)


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": [[1], [2]]}, {"messages": []}, {"prompt": [True]}])
def test_what_has_no_one_prompt_is_not_recorded(body):
    with pytest.raises(ValueError, match="without one prompt"):
        units_of(body, None)


def test_texts_count_four_bytes_a_token_or_by_a_tokenizer():
    assert units_of({"prompt": "abcdefgh!"}, None) == [b"abcd", b"efgh", b"!"]
    assert len(units_of({"prompt": "abc"}, lambda text: [1, 2, 3])) == 3


def test_generated_tokens_from_usage_or_events():
    assert output_tokens(b'{"usage": {"completion_tokens": 7}}', 1) == 7
    assert output_tokens(b'data: {"usage": {"completion_tokens": 5}}\n\ndata: [DONE]\n\n', 9) == 5
    assert output_tokens(b"data: {}\n\n", 9) == 9


def proxied(stand_in: StandIn, out: io.StringIO) -> TestClient:
    def handler(request: httpx.Request) -> httpx.Response:
        answer = stand_in.handle(request)
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))

    return TestClient(build_proxy("http://behind", Recorder(out, b"salt"), transport=httpx.MockTransport(handler)))


def test_a_trace_replays_with_the_same_prefixes_and_holds_no_token(tmp_path):
    out = io.StringIO()
    prompts = [list(range(1000, 1200)), list(range(1000, 1200)) + list(range(5000, 5100)), list(range(9000, 9300))]
    with proxied(StandIn(), out) as client:
        for prompt in prompts:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": 3, "stream": False}
            assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3
    path = tmp_path / "trace.jsonl"
    path.write_text(out.getvalue())
    assert "1000" not in path.read_text().replace('"tokens"', "")
    plans, notes = read_trace(path)
    assert not notes
    assert sorted(len(p.turns) for p in plans) == [1, 2]
    a, b = next(p for p in plans if len(p.turns) == 2).turns
    assert (len(a.tokens), len(b.tokens)) == (200, 300)
    same = [x == y for x, y in zip(a.tokens, b.tokens, strict=False)]
    assert same.index(False) == 192


def test_failed_and_other_requests_pass_and_are_not_written():
    out = io.StringIO()
    with proxied(StandIn(busy=1), out) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        assert client.get("/nowhere").status_code == 404
        answer = client.post("/v1/completions", json={"prompt": [1], "max_tokens": 1, "stream": False})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "0")
        assert client.post("/v1/completions", content=b"x" * ((32 << 20) + 1)).status_code == 413
    assert out.getvalue() == ""


def test_nobody_behind_it():
    def handler(request):
        raise httpx.ConnectError("no")

    proxy = build_proxy("http://behind", Recorder(io.StringIO(), b"s"), transport=httpx.MockTransport(handler))
    with TestClient(proxy) as client:
        assert client.get("/health").status_code == 502


def test_a_real_client_streams_through_it():
    out = io.StringIO()
    with running(FakeModel) as server, TestClient(build_proxy(server.url, Recorder(out, b"s"))) as client:
        api = openai.OpenAI(base_url="http://testserver/v1", api_key="x", http_client=client, max_retries=0)
        stream = api.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=6, stream=True
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert len(text) == 6
    line = json.loads(out.getvalue())
    assert line["output"] >= 6
    assert "hello" not in out.getvalue()
