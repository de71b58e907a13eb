"""Who answers, what a request to each make looks like, and the words for every way in which a server fails."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from statemark.client import Ask, Reply, Session
from statemark.client.request import body_of
from statemark.client.target import Target, base_url
from statemark.errors import ServerError
from tests.client.stand_in import StandIn


def session(stand_in: StandIn | None = None, handler=None) -> Session:
    async def no_sleep(seconds: float) -> None:
        waits.append(seconds)

    waits: list[float] = []
    transport = stand_in.transport() if stand_in else httpx.MockTransport(handler)
    found = Session("http://server/v1/", transport=transport, sleep=no_sleep)
    found.waits = waits
    return found


def run(coroutine):
    return asyncio.run(coroutine)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1", " h:1/v1 "])
def test_addresses_as_people_write_them(url):
    assert base_url(url) == "http://h:1"


@pytest.mark.parametrize("make", ["statemark", "vllm", "sglang", "llamacpp"])
def test_the_make_is_known_by_who_owns_the_model(make):
    s = session(StandIn(make=make))
    target = run(s.find())
    assert (target.make, target.model, target.max_model_len) == (make, "tiny", 4096)
    assert target.version


def test_an_unknown_make_is_asked_without_fields_of_others():
    target = run(session(StandIn(make="other")).find())
    body = body_of(Ask(prompt=[1], salt="s", cache=False, want_ids=True), target, stream=False)
    assert set(body) == {"model", "prompt", "max_tokens", "temperature", "stream"}


def test_bodies_in_the_words_of_each_make():
    def body(make: str) -> dict:
        target = Target(url="", model="m", make=make)
        return body_of(Ask(prompt=[1], salt="s", logprobs=20, cache=False, want_ids=True), target, stream=True)

    assert body("vllm")["cache_salt"] == body("statemark")["cache_salt"] == body("sglang")["cache_salt"] == "s"
    assert body("llamacpp")["cache_prompt"] is False
    assert "cache_salt" not in body("llamacpp")
    assert body("vllm")["return_tokens_as_token_ids"]
    assert body("statemark")["return_tokens_as_token_ids"]
    assert all(body(m)["temperature"] == 0 and "ignore_eos" not in body(m) for m in ("vllm", "sglang", "llamacpp"))


@pytest.mark.parametrize("make", ["vllm", "llamacpp"])
def test_log_probabilities_in_both_shapes(make):
    async def go():
        s = session(StandIn(make=make))
        await s.find()
        return await s.ask(Ask(prompt=[1, 2], max_tokens=3, logprobs=20))

    reply = run(go())
    assert len(reply.tokens) == 3
    assert len(reply.tokens[0].top) == 20
    assert (reply.prompt_tokens, reply.completion_tokens, reply.cached) == (2, 3, 0)


def test_a_full_server_is_asked_again_after_what_it_says():
    async def go(busy: int):
        s = session(StandIn(busy=busy))
        await s.find()
        await s.ask(Ask(prompt=[1]))
        return s.waits

    assert run(go(3)) == [0.0, 0.0, 0.0]
    with pytest.raises(ServerError) as caught:
        run(go(99))
    assert caught.value.kind == "limited"


def test_a_stream_is_read_to_its_end_and_one_that_is_cut_off_is_an_error():
    async def go(cut):
        s = session(StandIn(cut_after=cut))
        await s.find()
        return await s.read(Ask(prompt=[1, 2], max_tokens=5))

    reply = run(go(None))
    assert (reply.completion_tokens, reply.finish, len(reply.arrivals)) == (5, "length", 5)
    with pytest.raises(ServerError) as caught:
        run(go(2))
    assert caught.value.kind == "closed"


def _answers(**parts):
    return lambda request: httpx.Response(**parts)


def _raises(error):
    def handler(request):
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "kind", "words"),
    [
        (_raises(httpx.ConnectError("refused")), "down", "nobody answers"),
        (_raises(httpx.ReadTimeout("slow")), "timeout", "too long"),
        (_raises(httpx.RemoteProtocolError("gone")), "closed", "closed the connection"),
        (_answers(status_code=200, text="<html>hello</html>"), "protocol", "no JSON"),
        (_answers(status_code=200, json={"data": "x"}), "protocol", "no list of models"),
        (_answers(status_code=200, json=[1]), "protocol", "no list of models"),
        (_answers(status_code=404, text="nothing"), "protocol", "404"),
        (_answers(status_code=401, json={"error": {"message": "no key"}}), "refused", "no key"),
        (_answers(status_code=503, json={"error": {"message": "loading"}}), "limited", "loading"),
        (_answers(status_code=500, json={"detail": "broken"}), "failed", "broken"),
    ],
)
def test_words_for_servers_that_are_none(handler, kind, words):
    with pytest.raises(ServerError) as caught:
        run(session(handler=handler).find())
    assert caught.value.kind == kind
    assert words in caught.value.message


def test_the_model_must_be_one_that_is_served():
    with pytest.raises(ServerError, match="serves no model 'x'; it serves tiny"):
        run(session(StandIn()).find("x"))
    with pytest.raises(ServerError, match="serves 2 models: a, b"):
        run(session(StandIn(models=("a", "b"))).find())
    assert run(session(StandIn(models=("a", "b"))).find("b")).model == "b"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"choices": 3},
        {"choices": ["x"]},
        {"choices": [{"logprobs": {"tokens": ["a"], "token_logprobs": []}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a"}]}}]},
    ],
)
def test_answers_that_are_none_are_errors(data):
    with pytest.raises(ServerError) as caught:
        Reply().take(data, 0.0)
    assert caught.value.kind == "protocol"


def test_an_error_inside_a_stream_is_told():
    with pytest.raises(ServerError, match="shutting down"):
        Reply().take({"error": {"message": "the server is shutting down"}}, 0.0)


@pytest.mark.parametrize(("value", "told"), [("1.0", "statemark-plugin-exact"), ("0.0", "")])
def test_the_plugin_of_a_vllm_is_told_by_its_metrics(value, told):
    text = f'# TYPE x gauge\nstatemark_vllm_active{{engine="0",rule="exact",status="active"}} {value}\n'
    assert run(session(handler=lambda request: httpx.Response(200, text=text)).plugin()) == told
    assert run(session(StandIn(metrics=False)).plugin()) == ""


def test_cached_tokens_from_metrics():
    stand_in = StandIn(usage=False, hits=7)
    assert run(session(stand_in).hits()) == 7.0
    assert run(session(StandIn(metrics=False)).hits()) is None
