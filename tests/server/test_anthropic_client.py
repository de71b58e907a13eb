"""The real anthropic client against a real server: messages whole, streamed, sync and async, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually, running

HI: Any = [{"role": "user", "content": "hi"}]  # rendered "u:hi\na:", seven tokens
TOOL: Any = {"name": "clock", "description": "tells", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def claude(served: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as found:
        yield found


def rendered(fake: FakeModel) -> tuple[list[dict[str, Any]], Any, Any]:
    messages, tools, kwargs = fake.rendered
    return [{k: v for k, v in m.items() if v is not None} for m in messages], tools, kwargs


def test_message(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="fake", max_tokens=6, messages=HI)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "fake")
    assert answer.id.startswith("msg_")
    assert [(block.type, block.text) for block in answer.content] == [("text", "u:hi\na")]  # type: ignore[union-attr]
    assert (answer.stop_reason, answer.stop_sequence) == ("max_tokens", None)
    assert answer.usage.output_tokens == 6


def test_cached_tokens_are_counted_apart_from_those_that_were_computed(
    claude: anthropic.Anthropic,
) -> None:
    messages: Any = [{"role": "user", "content": "asked by nobody else, twice here"}]
    total = claude.messages.count_tokens(model="fake", messages=messages).input_tokens
    usages = [claude.messages.create(model="fake", max_tokens=1, messages=messages).usage for _ in range(2)]
    for usage in usages:
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == total
        assert usage.cache_creation_input_tokens == 0
    assert usages[1].input_tokens == 1


def test_a_stop_sequence_is_named(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(model="fake", max_tokens=50, messages=HI, stop_sequences=["hi"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "hi")


def test_streamed_events_come_in_the_order_that_the_api_promises(claude: anthropic.Anthropic) -> None:
    events = list(claude.messages.create(model="fake", max_tokens=4, messages=HI, stream=True))
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 4,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, delta = events[0], events[-2]
    assert start.type == "message_start"
    assert (start.message.content, start.message.stop_reason) == ([], None)
    assert delta.type == "message_delta"
    assert (delta.delta.stop_reason, delta.usage.output_tokens) == ("max_tokens", 4)


def test_the_stream_helper_puts_the_same_message_together(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="fake", max_tokens=9, messages=HI)
    with claude.messages.stream(model="fake", max_tokens=9, messages=HI) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == whole.content[0].text  # type: ignore[union-attr]
    assert [block.model_dump(exclude={"parsed_output"}) for block in streamed.content] == [
        block.model_dump() for block in whole.content
    ]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_async_client_whole_streamed_and_side_by_side(served: Running) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0) as client:

            async def one(word: str) -> str:
                messages: Any = [{"role": "user", "content": word}]
                async with client.messages.stream(model="fake", max_tokens=5, messages=messages) as stream:
                    return "".join([text async for text in stream.text_stream])

            whole = await client.messages.create(model="fake", max_tokens=5, messages=HI)
            return [whole.content[0].text, *await asyncio.gather(*(one(w) for w in ("aa", "bb", "cc")))]  # type: ignore[union-attr]

    assert asyncio.run(ask()) == ["u:hi\n", "u:aa\n", "u:bb\n", "u:cc\n"]


def test_system_blocks_tools_and_results_reach_the_template(claude: anthropic.Anthropic, fake: FakeModel) -> None:
    claude.messages.create(
        model="fake",
        max_tokens=1,
        system=[
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "x"},
        ],
        tools=[TOOL],
        tool_choice={"type": "auto"},
        metadata={"user_id": "somebody"},
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "what"}, {"type": "text", "text": "time?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "look", "signature": ""},
                    {"type": "text", "text": "wait"},
                    {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "utc"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "noon"}]},
                    {"type": "text", "text": "thanks"},
                ],
            },
        ],
    )
    messages, tools, _ = rendered(fake)
    call = {"id": "t1", "type": "function", "function": {"name": "clock", "arguments": {"zone": "utc"}}}
    thought = {"reasoning_content": "look", "reasoning": "look"}
    assert messages == [
        {"role": "system", "content": "be brief\nx"},
        {"role": "user", "content": "what\ntime?"},
        {"role": "assistant", "content": "wait", "tool_calls": [call]} | thought,
        {"role": "tool", "tool_call_id": "t1", "content": "noon"},
        {"role": "user", "content": "thanks"},
    ]
    function = {"name": "clock", "parameters": TOOL["input_schema"], "description": "tells"}
    assert tools == [{"type": "function", "function": function}]


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking_sets_the_templates_switch(
    claude: anthropic.Anthropic, fake: FakeModel, kind: str, thinks: bool
) -> None:
    thinking: Any = {"type": kind} | ({"budget_tokens": 1024} if kind == "enabled" else {})
    claude.messages.create(model="fake", max_tokens=1, messages=HI, thinking=thinking)
    assert rendered(fake)[2] == {"enable_thinking": thinks}


def test_an_answer_that_was_begun_is_continued(claude: anthropic.Anthropic, fake: FakeModel) -> None:
    claude.messages.create(model="fake", max_tokens=1, messages=[*HI, {"role": "assistant", "content": "well,"}])
    assert fake.decode(fake.seen[-1].prompt_token_ids).endswith("well,")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "at least one"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "'robot' is not one of"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]}, "assistant's turn"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}]}, "user's turn"),
    ({"surprise": 1}, "unknown field: 'surprise'"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]}, "tools[0].type"),
    ({"tool_choice": {"type": "some"}}, "tool_choice"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ({"temperature": -1}, "temperature must be"),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_bad_requests_have_anthropics_error_object(served: Running, change: dict[str, Any], words: str) -> None:
    for stream in (False, True):
        body = {"model": "fake", "max_tokens": 2, "messages": HI, "stream": stream} | change
        response = httpx.post(f"{served.url}/v1/messages", json=body)
        assert response.status_code == 400, response.text
        found = response.json()
        assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
        assert words in found["error"]["message"]


def test_errors_reach_the_client_as_its_own_exceptions(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'other'"):
        claude.messages.create(model="other", max_tokens=1, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(model="fake", max_tokens=1, messages=HI, extra_body={"temperature": 200})
    failing: Any = [{"role": "user", "content": "!fail"}]
    with pytest.raises(anthropic.InternalServerError, match="planted failure"):
        claude.messages.create(model="fake", max_tokens=1, messages=failing)
    with pytest.raises(anthropic.APIStatusError, match="planted failure"):
        list(claude.messages.create(model="fake", max_tokens=1, messages=failing, stream=True))


def test_its_way_to_send_the_key() -> None:
    with running(FakeModel, settings=Settings(port=0, api_key="s3cret")) as locked:
        with anthropic.Anthropic(base_url=locked.url, api_key="s3cret", max_retries=0) as right:
            right.messages.create(model="fake", max_tokens=1, messages=HI)
        wrong = anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0)
        with wrong, pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model="fake", max_tokens=1, messages=HI)
        for path in ("/tokenize", "/reset_prefix_cache", "/v1/messages/count_tokens"):
            assert httpx.post(f"{locked.url}{path}", json={}).status_code == 401


def test_leaving_a_stream_stops_the_work() -> None:
    model = FakeModel()
    model.max_model_len = 10**9
    with running(lambda: model) as found:
        client = anthropic.Anthropic(base_url=found.url, api_key="none", max_retries=0)
        with client, client.messages.stream(model="fake", max_tokens=10**8, messages=HI) as stream:
            next(iter(stream.text_stream))
        eventually(lambda: found.state.engine.held == 0 and not model.requests)
