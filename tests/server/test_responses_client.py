"""The real openai client against /v1/responses: whole, streamed, sync and async, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import Running


def test_response(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="fake", input="hi", max_output_tokens=4)
    assert (answer.object, answer.model, answer.status) == ("response", "fake", "incomplete")
    assert answer.id.startswith("resp_")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "u:hi"
    assert [(item.type, item.status) for item in answer.output] == [("message", "incomplete")]  # type: ignore[union-attr]
    usage = answer.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (7, 4, 11)
    assert usage.input_tokens_details.cached_tokens >= 0


def test_cached_tokens_of_a_second_ask(client: openai.OpenAI) -> None:
    for _ in range(2):
        usage = client.responses.create(model="fake", input="a thing of its own", max_output_tokens=1).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == usage.input_tokens - 1


def test_events_come_in_order_and_are_numbered(client: openai.OpenAI) -> None:
    events = list(client.responses.create(model="fake", input="hi", max_output_tokens=3, stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == "u:h"


def test_the_stream_helper_ends_with_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="fake", input="hi\0")
    assert (whole.status, whole.incomplete_details, whole.output_text) == ("completed", None, "u:hi")
    with client.responses.stream(model="fake", input="hi\0") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        last = stream.get_final_response()
    assert text == last.output_text == whole.output_text
    assert last.usage is not None
    assert whole.usage is not None
    assert (last.status, last.usage.total_tokens) == (whole.status, whole.usage.total_tokens)


def test_async_client(served: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:

            async def one(word: str) -> str:
                text = ""
                async for event in await client.responses.create(
                    model="fake", input=word, max_output_tokens=5, stream=True
                ):
                    text += event.delta if event.type == "response.output_text.delta" else ""
                return text

            whole = await client.responses.create(model="fake", input="hi", max_output_tokens=5)
            return [whole.output_text, *await asyncio.gather(*(one(w) for w in ("aa", "bb")))]

    assert asyncio.run(ask()) == ["u:hi\n", "u:aa\n", "u:bb\n"]


def test_items_become_turns(client: openai.OpenAI, fake: FakeModel) -> None:
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "what "}, {"type": "input_text", "text": "time?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "look"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "wait", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": '{"zone": "utc"}'},
        {"type": "function_call", "call_id": "c2", "name": "clock", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
        {"role": "developer", "content": "hurry"},
    ]
    tool: Any = {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": True}
    client.responses.create(
        model="fake", instructions="be brief", input=items, max_output_tokens=1, tools=[tool], store=False
    )
    messages, tools, _ = fake.rendered
    calls = [
        {"id": name, "type": "function", "function": {"name": "clock", "arguments": arguments}}
        for name, arguments in (("c1", {"zone": "utc"}), ("c2", {}))
    ]
    assert messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what time?"},
        {"role": "assistant", "content": "wait", "reasoning_content": "look", "reasoning": "look", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "system", "content": "hurry"},
    ]
    assert tools == [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]


def test_an_answer_can_be_sent_back_as_it_came(client: openai.OpenAI, fake: FakeModel) -> None:
    first = client.responses.create(model="fake", input="hi", max_output_tokens=2)
    again: Any = [{"role": "user", "content": "hi"}, *first.output, {"role": "user", "content": "more"}]
    client.responses.create(model="fake", input=again, max_output_tokens=1)
    assert [m["content"] for m in fake.rendered[0]] == ["hi", "u:", "more"]


def test_effort_none_asks_for_no_reasoning(client: openai.OpenAI, fake: FakeModel) -> None:
    for effort, thinks in (("none", False), ("low", True)):
        reasoning: Any = {"effort": effort}
        client.responses.create(model="fake", input="hi", max_output_tokens=1, reasoning=reasoning)
        assert fake.rendered[2] == {"enable_thinking": thinks}


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace"}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].type"),
        ({"text": {"format": {"type": "poem"}}}, "text.format"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0]"),
        ({"input": 5}, "input"),
        ({"surprise": 1}, "surprise"),
        ({"max_output_tokens": 0}, "max_tokens"),
    ],
)
def test_what_is_not_served_is_named(served: Running, change: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        body = {"input": "hi", "max_output_tokens": 1, "stream": stream} | change
        response = httpx.post(f"{served.url}/v1/responses", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].startswith(param)


def test_a_failure_ends_the_stream_with_a_failed_response(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="planted failure"):
        client.responses.create(model="fake", input="!fail")
    last = list(client.responses.create(model="fake", input="!fail", stream=True))[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "planted failure" in last.response.error.message
