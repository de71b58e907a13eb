"""The server over a real model: what it serves is what the offline API computes, bit for bit, cached or not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from statemark.engine.llm import LLM
from statemark.engine.params import SamplingParams
from statemark.server.loaded import LoadedModel
from tests.server.live_server import Running, eventually


@pytest.fixture(scope="module")
def real_client(real: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM(tiny, num_threads=1, cache_memory="64MiB", enable_prefix_caching=False)


def cached(answer: Any) -> int:
    return int(answer.usage.prompt_tokens_details.cached_tokens)


def test_identity(real: Running, real_client: openai.OpenAI) -> None:
    (model,) = real_client.models.list().data
    assert model.id == "tiny"
    assert (model.model_extra or {})["max_model_len"] > 1000
    answer = real_client.completions.create(model="tiny", prompt="a", max_tokens=1)
    loaded = real.state.model()
    assert answer.system_fingerprint == loaded.fingerprint
    for part in (loaded.precision, loaded.isa):
        assert f"-{part}-" in loaded.fingerprint


def test_equal_to_the_offline_api_to_the_last_bit_and_again_from_the_cache(
    real_client: openai.OpenAI, llm: LLM
) -> None:
    prompt = "the same question asked twice, so that the second answer starts from the cache"
    (expected,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=12, logprobs=20), use_tqdm=False)
    choice = expected.outputs[0]
    assert choice.logprobs is not None
    size = len(expected.prompt_token_ids)
    for reused in (0, size - 1):
        answer = real_client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=12,
            temperature=0,
            logprobs=20,
            extra_body={"return_token_ids": True, "cache_salt": "twice"},
        )
        assert cached(answer) == reused
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == size
        got = answer.choices[0]
        assert (got.model_extra or {})["token_ids"] == choice.token_ids
        assert got.text == choice.text
        assert got.logprobs is not None
        chosen = [row[t].logprob for row, t in zip(choice.logprobs, choice.token_ids, strict=True)]
        assert got.logprobs.token_logprobs == chosen


def test_a_growing_chat_computes_new_messages_only(real_client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "a system message of some length " * 4}]
    before = 0
    for turn in range(3):
        messages.append({"role": "user", "content": f"question number {turn}"})
        answer = real_client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, temperature=0, extra_body={"cache_salt": "growing"}
        )
        assert answer.usage is not None
        if turn:  # the previous prompt but for its generation header, or with it and the answer too
            assert before - 8 <= cached(answer) <= before + 8 < answer.usage.prompt_tokens
        else:
            assert cached(answer) == 0
        before = answer.usage.prompt_tokens
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})


def test_salts_share_nothing(real_client: openai.OpenAI) -> None:
    def ask(salt: str) -> int:
        answer = real_client.completions.create(
            model="tiny", prompt="a secret prompt of some length", max_tokens=1, extra_body={"cache_salt": salt}
        )
        return cached(answer)

    assert ask("one") == 0
    assert ask("two") == 0
    assert ask("one") > 0


def test_sampling_repeats_with_a_seed_and_n_differ(real_client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = real_client.completions.create(
            model="tiny", prompt="dice", max_tokens=12, temperature=1.5, seed=11, n=3
        )
        return [choice.text for choice in answer.choices]

    first = ask()
    assert len(set(first)) == 3
    assert ask() == first


def test_stop_strings_end_the_text_before_them(real_client: openai.OpenAI) -> None:
    def ask(**fields: Any) -> Any:
        answer = real_client.completions.create(model="tiny", prompt="stop", max_tokens=24, temperature=0, **fields)
        return answer.choices[0]

    whole = ask().text
    stop = whole[9:12]
    at = whole.index(stop)
    got = ask(stop=[stop, "never in there"])
    assert (got.text, got.finish_reason) == (whole[:at], "stop")
    included = ask(stop=stop, extra_body={"include_stop_str_in_output": True})
    assert included.text == whole[: at + len(stop)]


def test_streams_at_once_equal_the_same_requests_alone(real: Running, llm: LLM) -> None:
    """32 streams over 8 running sequences, temperatures and lengths mixed."""
    params = [
        SamplingParams(temperature=(n % 3) / 2, seed=n, max_tokens=4 + n % 9, logprobs=5, min_tokens=4)
        for n in range(32)
    ]
    prompts = [f"{'shared words ' * (n % 5)}and number {n}" for n in range(32)]
    expected = [llm.generate(prompt, p, use_tqdm=False)[0] for prompt, p in zip(prompts, params, strict=True)]

    async def one(client: openai.AsyncOpenAI, n: int) -> tuple[str, list[int], list[float]]:
        text, ids, logprobs = "", [], []
        stream = await client.completions.create(
            model="tiny",
            prompt=prompts[n],
            max_tokens=params[n].max_tokens,
            temperature=params[n].temperature,
            seed=n,
            logprobs=5,
            stream=True,
            extra_body={"min_tokens": 4, "return_token_ids": True},
        )
        async for chunk in stream:
            text += chunk.choices[0].text
            ids += (chunk.choices[0].model_extra or {})["token_ids"]
            if chunk.choices[0].logprobs is not None:
                logprobs += chunk.choices[0].logprobs.token_logprobs or []
        return text, ids, logprobs  # type: ignore[return-value]

    async def all_of_them() -> list[tuple[str, list[int], list[float]]]:
        async with openai.AsyncOpenAI(base_url=f"{real.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, n) for n in range(32)))

    for got, want in zip(asyncio.run(all_of_them()), expected, strict=True):
        choice = want.outputs[0]
        assert choice.logprobs is not None
        chosen = [row[t].logprob for row, t in zip(choice.logprobs, choice.token_ids, strict=True)]
        assert got == (choice.text, choice.token_ids, chosen)
    eventually(lambda: real.state.engine.held == 0)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [10**7]}, "prompt", "10000000"),
        ({"prompt": [-1]}, "prompt", "-1"),
        ({"prompt": [2**40]}, "prompt", str(2**40)),
        ({"prompt": [1] * 300_000}, "prompt", "300000 tokens"),
        ({"prompt": "a", "stop_token_ids": [10**7]}, "stop_token_ids", "10000000"),
        ({"prompt": "a", "logit_bias": {"10000000": 1}}, "logit_bias", "10000000"),
    ],
)
def test_what_only_the_engine_can_refuse(real: Running, fields: dict[str, Any], param: str, words: str) -> None:
    response = httpx.post(f"{real.url}/v1/completions", json=fields, timeout=60)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert words in response.json()["error"]["message"]


def test_a_template_refusal_is_the_clients_error(real: Running) -> None:
    response = httpx.post(
        f"{real.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": []}},
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == "chat_template_kwargs.messages"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"system": "sys", "messages": [["user", "hi"], ["system", "late"]]}),
        ("/v1/chat/completions", {"messages": [["system", "sys"], ["user", "hi"], ["system", "late"]]}),
        ("/v1/responses", {"instructions": "sys", "input": [["developer", "more"], ["user", "hi"]]}),
    ],
)
def test_system_messages_where_agents_put_them(trained: Running, path: str, fields: dict[str, Any]) -> None:
    """The bundled model's template refuses all but one at the beginning, as those of most models do."""
    limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    body = {name: value if isinstance(value, str) else turns(value) for name, value in fields.items()} | {limit: 1}
    response = httpx.post(f"{trained.url}{path}", json=body, timeout=60)
    assert response.status_code == 200, response.text


def turns(pairs: list[list[str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in pairs]


def test_a_client_that_leaves_frees_the_engine(real: Running) -> None:
    body = {"prompt": "go on and on", "max_tokens": 5000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{real.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()  # kept: a collected iterator would close the response by itself
        next(lines)
        eventually(lambda: real.state.engine.held == 1)
    model = real.state.model()
    assert isinstance(model, LoadedModel)
    eventually(lambda: real.state.engine.held == 0 and not model.has_work())
    model.text.engine.check_integrity()


def test_the_report_tells_what_the_cache_holds(real: Running) -> None:
    text = "\n".join(real.state.model().report())
    for part in (
        "tiny",
        "bfloat16",
        "1 thread",
        "64 MiB: ",
        "tokens of pages and ",
        "marks, smallest reusable prefix 1 token",
    ):
        assert part in text
