"""The real openai client against a real server: what comes back is what the API promises."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="wxyz", max_tokens=6)
    assert answer.object == "text_completion"
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [(0, "wxyzwx", "length")]
    assert answer.choices[0].logprobs is None
    assert answer.system_fingerprint == "statemark-test"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 6, 10)


def test_completion_defaults_to_sixteen_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="ab")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_cached_tokens_are_always_reported(client: openai.OpenAI) -> None:
    prompt = "a prompt that no other test sends"
    counts = []
    for _ in range(2):
        answer = client.completions.create(model="fake", prompt=prompt, max_tokens=1)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        counts.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert counts[0] < len(prompt) - 1
    assert counts[1] == len(prompt) - 1


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["aba", "aba"]),
        (["ab", "cd"], ["aba", "aba", "cdc", "cdc"]),
        ([120, 121], ["xyx", "xyx"]),
        ([[120, 121], [97]], ["xyx", "xyx", "aaa", "aaa"]),
    ],
)
def test_every_form_of_prompt_times_n(client: openai.OpenAI, prompt: object, texts: list[str]) -> None:
    answer = client.completions.create(model="fake", prompt=prompt, max_tokens=3, n=2)  # type: ignore[call-overload]
    assert [c.text for c in answer.choices] == texts
    assert [c.index for c in answer.choices] == list(range(len(texts)))
    assert answer.usage.completion_tokens == 3 * len(texts)


def test_echo_with_logprobs_covers_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="abc", max_tokens=2, echo=True, logprobs=2)
    choice = answer.choices[0]
    assert choice.text == "abcab"
    found = choice.logprobs
    assert found is not None
    assert found.tokens == ["a", "b", "c", "a", "b"]
    assert found.text_offset == [0, 1, 2, 3, 4]
    assert found.token_logprobs == [None, -0.25, -0.25, -0.25, -0.25]
    assert found.top_logprobs is not None
    assert found.top_logprobs[1:] == [{c: -0.25, chr(ord(c) + 1): -1.25} for c in "bcab"]


def test_scoring_a_prompt_generates_nothing(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt="abc", max_tokens=0, echo=True, logprobs=1)
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_legacy_logprobs_name_the_chosen_token_even_without_likely_ones(client: openai.OpenAI) -> None:
    found = client.completions.create(model="fake", prompt="abc", max_tokens=2, logprobs=0).choices[0].logprobs
    assert found is not None
    assert (found.tokens, found.token_logprobs, found.top_logprobs) == (["a", "b"], [-0.25, -0.25], None)


def test_completion_stream_equals_the_whole(client: openai.OpenAI) -> None:
    asked = {"model": "fake", "prompt": ["abc", "xy"], "max_tokens": 5, "n": 2, "echo": True, "logprobs": 1}
    whole = client.completions.create(**asked)  # type: ignore[call-overload]
    texts: dict[int, str] = {}
    tokens: dict[int, list[str]] = {}
    offsets: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    usages = []
    stream = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    for chunk in stream:
        if chunk.usage is not None:
            assert chunk.choices == []
            usages.append(chunk.usage)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens)
            offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset)
            if choice.finish_reason is not None:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert texts == {c.index: c.text for c in whole.choices}
    assert tokens == {c.index: c.logprobs.tokens for c in whole.choices}
    assert offsets == {c.index: c.logprobs.text_offset for c in whole.choices}
    assert reasons == dict.fromkeys(range(4), "length")
    assert [(u.prompt_tokens, u.completion_tokens) for u in usages] == [(5, 20)]


def test_chat(client: openai.OpenAI, fake: FakeModel) -> None:
    answer = client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]},
        ],
        max_completion_tokens=5,
    )
    assert answer.object == "chat.completion"
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "s:be ", "length")
    assert fake.rendered[0] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    assert fake.seen[-1].turn_positions == (11, 19)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("s:be brief\nu:hello\na:")


def test_chat_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "é"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [(t.token, t.bytes, t.logprob) for t in found.content] == [
        ("u", [117], -0.25),
        (":", [58], -0.25),
        ("é", [195, 169], -0.25),
    ]
    assert [(t.token, t.logprob) for t in found.content[0].top_logprobs] == [("u", -0.25), ("v", -1.25)]


def test_chat_stream_has_the_usual_frames(client: openai.OpenAI) -> None:
    frames = list(
        client.chat.completions.create(
            model="fake",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert {f.object for f in frames} == {"chat.completion.chunk"}
    assert len({f.id for f in frames}) == 1
    first, *middle, last, usage = frames
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(f.choices[0].delta.content or "" for f in middle) == "u:hi"
    assert all(f.choices[0].finish_reason is None for f in [first, *middle])
    assert (last.choices[0].delta.content, last.choices[0].finish_reason) == (None, "length")
    assert all(f.usage is None for f in frames[:-1])
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 4
    assert usage.usage.prompt_tokens_details is not None


def test_chat_stream_of_several_choices(client: openai.OpenAI) -> None:
    texts = {0: "", 1: "", 2: ""}
    roles: list[int] = []
    ends: list[int] = []
    stream = client.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=3, stream=True
    )
    for frame in stream:
        (choice,) = frame.choices
        assert choice.index not in ends
        if choice.delta.role is not None:
            roles.append(choice.index)
        texts[choice.index] += choice.delta.content or ""
        if choice.finish_reason is not None:
            ends.append(choice.index)
    assert texts == dict.fromkeys(range(3), "u:hi")
    assert sorted(roles) == sorted(ends) == [0, 1, 2]


def test_stop_strings_and_stop_ids_are_named(client: openai.OpenAI) -> None:
    by_text = client.completions.create(model="fake", prompt="abcdef", max_tokens=50, stop="d")
    by_id = client.completions.create(
        model="fake", prompt="abcdef", max_tokens=50, extra_body={"stop_token_ids": [ord("c")]}
    )
    for answer, text, reason in ((by_text, "abc", "d"), (by_id, "ab", ord("c"))):
        choice = answer.choices[0]
        assert (choice.text, choice.finish_reason) == (text, "stop")
        assert choice.model_extra == {"stop_reason": reason}


def test_fields_beyond_openai_reach_the_engine(client: openai.OpenAI, fake: FakeModel) -> None:
    client.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=9,
        seed=7,
        top_p=0.5,
        temperature=0.75,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={"65": 3},
        stop=["q", "zz"],
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        extra_body={
            "top_k": 5,
            "min_p": 0.125,
            "repetition_penalty": 1.5,
            "min_tokens": 2,
            "ignore_eos": True,
            "stop_token_ids": [3],
            "cache_salt": "tenant",
            "chat_template_kwargs": {"enable_thinking": False},
        },
    )
    request = fake.seen[-1]
    params = request.params
    assert (params.seed, params.top_p, params.top_k, params.min_p) == (7, 0.5, 5, 0.125)
    assert (params.temperature, params.repetition_penalty) == (0.75, 1.5)
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, -0.5)
    assert (params.min_tokens, params.max_tokens, params.ignore_eos) == (2, 9, True)
    assert (params.stop, params.stop_token_ids, params.logit_bias) == (("q", "zz"), (3,), {65: 3.0})
    assert request.cache_salt == "tenant"
    assert request.eos_token_ids == {0}
    assert fake.rendered[1] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert fake.rendered[2] == {"enable_thinking": False}


def test_what_a_request_leaves_open_comes_from_the_model(client: openai.OpenAI, fake: FakeModel) -> None:
    client.completions.create(model="fake", prompt="ab", max_tokens=1)
    assert fake.seen[-1].params.temperature == 0.0
    client.completions.create(model="fake", prompt="ab", max_tokens=1, temperature=1)
    assert fake.seen[-1].params.temperature == 1.0


def test_tool_messages_reach_the_template_parsed(client: openai.OpenAI, fake: FakeModel) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [call]},  # type: ignore[list-item,misc]
            {"role": "tool", "content": "42", "tool_call_id": "c1"},
        ],
        tool_choice="none",
        tools=[{"type": "function", "function": {"name": "f"}}],
        max_tokens=1,
    )
    messages, tools, _ = fake.rendered
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert messages[2] == {"role": "tool", "content": "42", "tool_call_id": "c1"}
    assert tools is None


def test_token_ids_and_prompt_logprobs_on_request(client: openai.OpenAI) -> None:
    extra = {"return_token_ids": True, "prompt_logprobs": 1}
    completion = client.completions.create(model="fake", prompt="ab", max_tokens=3, extra_body=extra)
    found = completion.choices[0].model_extra or {}
    assert (found["prompt_token_ids"], found["token_ids"]) == ([97, 98], [97, 98, 97])
    row = {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}}
    assert found["prompt_logprobs"] == [None, row]

    messages: list[object] = [{"role": "user", "content": "b"}]
    chat = client.chat.completions.create(model="fake", messages=messages, max_tokens=1, extra_body=extra)  # type: ignore[call-overload]
    assert chat.model_extra["prompt_token_ids"] == [ord(c) for c in "u:b\na:"]
    assert chat.model_extra["prompt_logprobs"][2] == row
    assert chat.choices[0].model_extra["token_ids"] == [ord("u")]

    frames = list(
        client.chat.completions.create(model="fake", messages=messages, max_tokens=2, stream=True, extra_body=extra)  # type: ignore[call-overload]
    )
    assert frames[0].model_extra["prompt_token_ids"] == chat.model_extra["prompt_token_ids"]
    assert "prompt_token_ids" not in (frames[1].model_extra or {})
    ids = [t for f in frames for c in f.choices for t in (c.model_extra or {}).get("token_ids", [])]
    assert ids == [ord("u"), ord(":")]


def test_async_client_with_many_streams_at_once(served: Running) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        text = ""
        stream = await client.completions.create(
            model="fake", prompt=f"<{number:02d}>", max_tokens=4 + number, stream=True
        )
        async for chunk in stream:
            text += chunk.choices[0].text
        return text

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, number) for number in range(32)))

    texts = asyncio.run(all_of_them())
    assert texts == [(f"<{n:02d}>" * 10)[: 4 + n] for n in range(32)]
    eventually(lambda: served.state.engine.held == 0)
