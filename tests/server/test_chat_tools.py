"""Reasoning and tool calls over the chat API, with the real openai client and answers written by the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from statemark.parsing import TOOL_FORMATS, ChatFormat
from tests.server.live_server import Running
from tests.server.scripted_model import ScriptedModel

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
ASK: Any = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER, CLOCK]}


@pytest.fixture(scope="module")
def chat(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(autouse=True)
def fresh(script: ScriptedModel) -> Iterator[None]:
    script.header, script.letters, script.chat_format = "", 1, ChatFormat(TOOL_FORMATS["hermes"], thinks=True)
    yield
    assert script.scripts == []
    assert script.requests == {}


def whole(chat: openai.OpenAI, script: ScriptedModel, text: str, **fields: Any) -> Any:
    script.scripts = [text]
    return chat.chat.completions.create(**(ASK | fields)).choices[0]


def streamed(chat: openai.OpenAI, script: ScriptedModel, text: str, **fields: Any) -> dict[str, Any]:
    """What a client puts together, as the API's documents say."""
    script.scripts = [text]
    found: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "calls": {}, "frames": []}
    for chunk in chat.chat.completions.create(**(ASK | fields), stream=True):
        (choice,) = chunk.choices
        found["frames"].append(choice)
        delta = choice.delta
        found["content"] += delta.content or ""
        for name in ("reasoning", "reasoning_content"):
            found[name] += (delta.model_extra or {}).get(name, "")
        for call in delta.tool_calls or ():
            if call.id is not None:
                assert call.index not in found["calls"]
                assert call.type == "function"
                found["calls"][call.index] = {"id": call.id, "name": call.function.name, "arguments": ""}
            else:
                assert call.function.name is None
            found["calls"][call.index]["arguments"] += call.function.arguments
        found["finish_reason"] = choice.finish_reason
    return found


def test_reasoning_goes_by_both_names(chat: openai.OpenAI, script: ScriptedModel) -> None:
    text = "<think>\nlet me see\n</think>\n\nhello"
    choice = whole(chat, script, text)
    assert choice.message.content == "hello"
    assert choice.message.model_extra == {"reasoning_content": "let me see", "reasoning": "let me see"}
    assert choice.finish_reason == "stop"
    for script.letters in (1, 3, 100):
        found = streamed(chat, script, text)
        assert (found["reasoning"], found["reasoning_content"]) == ("let me see", "let me see")
        assert (found["content"], found["finish_reason"]) == ("hello", "stop")


@pytest.mark.parametrize(
    ("header", "text", "reasoning", "content"),
    [
        ("<think>\n", "why\n</think>\n\nso", "why", "so"),
        ("<think>\n", "cut off", "cut off", ""),
        ("<think>\n\n</think>\n\n", "so", None, "so"),
        ("", "so", None, "so"),
        ("", "a </think> b", None, "a </think> b"),
    ],
)
def test_the_header_may_open_the_think_section_or_close_it(
    chat: openai.OpenAI, script: ScriptedModel, header: str, text: str, reasoning: str | None, content: str
) -> None:
    script.header = header
    choice = whole(chat, script, text)
    assert choice.message.content == content
    assert (choice.message.model_extra or {}).get("reasoning_content") == reasoning
    found = streamed(chat, script, text)
    assert (found["reasoning"], found["content"]) == (reasoning or "", content)


@pytest.mark.parametrize(
    ("header", "text", "thought"),
    [
        ("", "<think>\nhm\n</think>\n\nso", "<think>\nhm\n</think>"),
        ("<think>\n", "why\n</think>\n\nso", "why\n</think>"),
        ("<think>\n", "cut off", "cut off."),  # the end of text as well: it came while thinking
        ("<think>\n\n</think>\n\n", "so", ""),
        ("", "a </think> b", ""),
        ("", "<thinking", ""),
    ],
)
def test_tokens_of_think_sections_are_counted_in_every_api(
    chat: openai.OpenAI, script: ScriptedModel, header: str, text: str, thought: str
) -> None:
    """Every letter is a token here; the tags are thought, too."""
    script.header = header
    script.scripts = [text] * 5
    answer = chat.chat.completions.create(**ASK, n=2)
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2 * len(thought)
    assert answer.usage.completion_tokens == 2 * (len(text) + 1)
    *_, last = chat.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    assert last.usage.completion_tokens_details.reasoning_tokens == len(thought)
    response = chat.responses.create(model="scripted", input="hi")
    assert response.usage.output_tokens_details.reasoning_tokens == len(thought)
    *_, ended = chat.responses.create(model="scripted", input="hi", stream=True)
    assert ended.response.usage.output_tokens_details.reasoning_tokens == len(thought)


def test_a_continued_message_goes_on_where_it_was(chat: openai.OpenAI, script: ScriptedModel) -> None:
    def ask(begun: str) -> Any:
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": begun}]
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        return whole(chat, script, "more</think>then", messages=messages, extra_body=extra).message

    assert ask("<think>so far").model_extra == {"reasoning_content": "more", "reasoning": "more"}
    assert ask("<think>x</think>so far").content == "more</think>then"


def test_reasoning_is_accepted_back_by_either_name(chat: openai.OpenAI, script: ScriptedModel) -> None:
    for name in ("reasoning", "reasoning_content"):
        messages = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "a", name: "because"},
            {"role": "user", "content": "go on"},
        ]
        whole(chat, script, "ok", messages=messages)
        sent = script.rendered[0][1]
        assert (sent["reasoning"], sent["reasoning_content"]) == ("because", "because")


def test_tool_calls(chat: openai.OpenAI, script: ScriptedModel) -> None:
    text = f"<think>\nhm\n</think>\n\nI look.\n{CALL}\n{OTHER}"
    choice = whole(chat, script, text)
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.model_extra["reasoning"]) == ("I look.", "hm")
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
        ("function", "get_weather", '{"city": "Rome"}'),
        ("function", "clock", "{}"),
    ]
    assert len({c.id for c in calls}) == 2
    for script.letters in (1, 7, 1000):
        found = streamed(chat, script, text)
        assert (found["content"], found["reasoning"], found["finish_reason"]) == ("I look.", "hm", "tool_calls")
        assert [(c["name"], c["arguments"]) for _, c in sorted(found["calls"].items())] == [
            ("get_weather", '{"city": "Rome"}'),
            ("clock", "{}"),
        ]


def test_calls_alone_have_no_content(chat: openai.OpenAI, script: ScriptedModel) -> None:
    assert whole(chat, script, CALL).message.content is None


def test_arguments_stream_as_they_are_written(chat: openai.OpenAI, script: ScriptedModel) -> None:
    text = json.dumps({"name": "get_weather", "arguments": {"city": "x" * 50}})
    frames = streamed(chat, script, f"<tool_call>{text}</tool_call>")["frames"]
    pieces = [f.delta.tool_calls[0].function.arguments for f in frames if f.delta.tool_calls]
    assert len(pieces) > 50
    assert "".join(pieces) == '{"city": "' + "x" * 50 + '"}'


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {]}\n</tool_call>',
        '<tool_call>\n{"name": "clock", "arguments": {"a": "cut',
        "<tool_call>",
        "see <tool_call> for calls",
    ],
)
def test_a_malformed_call_is_text(chat: openai.OpenAI, script: ScriptedModel, text: str) -> None:
    choice = whole(chat, script, text)
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")
    found = streamed(chat, script, text)
    assert (found["content"], found["finish_reason"]) == (text, "stop")
    for call in found["calls"].values():  # what had begun is no JSON, so that nobody can run it
        with pytest.raises(json.JSONDecodeError):
            json.loads(call["arguments"])


def test_a_call_cut_by_the_limit_is_text(chat: openai.OpenAI, script: ScriptedModel) -> None:
    choice = whole(chat, script, CALL, max_tokens=len(CALL) - 15)
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (CALL[:-15], None, "length")


def test_without_tools_or_with_none_chosen_calls_are_text(chat: openai.OpenAI, script: ScriptedModel) -> None:
    for fields in ({"tools": openai.omit}, {"tools": []}, {"tool_choice": "none"}):
        choice = whole(chat, script, CALL, **fields)
        assert (choice.message.content, choice.finish_reason) == (CALL, "stop")
        assert script.rendered[1] in (None, [])


def test_one_call_where_parallel_ones_are_off(chat: openai.OpenAI, script: ScriptedModel) -> None:
    choice = whole(chat, script, f"{CALL}{OTHER}", parallel_tool_calls=False)
    assert [c.function.name for c in choice.message.tool_calls] == ["get_weather"]
    assert choice.message.content == OTHER


NAMED: Any = {"type": "function", "function": {"name": "clock"}}


@pytest.mark.parametrize(
    ("tool_choice", "text", "called"),
    [
        ("auto", "no call", []),
        ("auto", OTHER, ["clock"]),
        ("required", OTHER, ["clock"]),
        ("required", f"{CALL}{OTHER}", ["get_weather", "clock"]),
        (NAMED, OTHER, ["clock"]),
    ],
)
def test_tool_choice(
    chat: openai.OpenAI, script: ScriptedModel, tool_choice: Any, text: str, called: list[str]
) -> None:
    message = whole(chat, script, text, tool_choice=tool_choice).message
    assert [c.function.name for c in message.tool_calls or ()] == called
    assert script.rendered[1] == [WEATHER, CLOCK]  # all of them, so that the prompt stays cached


@pytest.mark.parametrize(("tool_choice", "text"), [("required", "no call"), ("required", CALL[:-20]), (NAMED, CALL)])
def test_a_call_that_was_asked_for_and_did_not_come_is_an_error(
    chat: openai.OpenAI, script: ScriptedModel, tool_choice: Any, text: str
) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="tool_choice asks for") as caught:
        whole(chat, script, text, tool_choice=tool_choice)
    assert caught.value.code == "tool_call_missing"
    with pytest.raises(openai.APIError, match="tool_choice asks for"):
        streamed(chat, script, text, tool_choice=tool_choice)


def test_a_conversation_with_tools_goes_round(chat: openai.OpenAI, script: ScriptedModel) -> None:
    """The answer's message is sent back as it came, with the results; templates see arguments as objects."""
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    message = whole(chat, script, f"<think>hm</think>{CALL}{OTHER}", messages=messages).message
    messages.append(message)
    messages += [
        {"role": "tool", "tool_call_id": call.id, "content": f"result of {call.function.name}"}
        for call in message.tool_calls
    ]
    assert whole(chat, script, "sunny", messages=messages).message.content == "sunny"
    _, turn, first, second = script.rendered[0]
    assert (turn["content"], turn["reasoning_content"]) == ("", "hm")
    assert [c["function"]["arguments"] for c in turn["tool_calls"]] == [{"city": "Rome"}, {}]
    assert [(m["role"], m["content"]) for m in (first, second)] == [
        ("tool", "result of get_weather"),
        ("tool", "result of clock"),
    ]


def test_each_choice_is_read_on_its_own(chat: openai.OpenAI, script: ScriptedModel) -> None:
    script.scripts = [f"<think>a</think>{CALL}", "<tool_call>{", "plain"]
    choices = chat.chat.completions.create(**ASK, n=3).choices
    assert [c.finish_reason for c in choices] == ["tool_calls", "stop", "stop"]
    assert [c.message.content for c in choices] == [None, "<tool_call>{", "plain"]


def test_logprobs_and_token_ids_of_every_token_are_streamed(chat: openai.OpenAI, script: ScriptedModel) -> None:
    text = f"<think>hm</think>ok {CALL}"
    for script.letters in (1, 5):
        frames = streamed(chat, script, text, logprobs=True, extra_body={"return_token_ids": True})["frames"]
        tokens = [t.token for f in frames if f.logprobs for t in f.logprobs.content]
        ids = [i for f in frames for i in (f.model_extra or {}).get("token_ids", [])]
        assert "".join(tokens) == "".join(map(chr, ids)) == f"{text}\0"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qwen3_coder", "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>"),
        ("lfm2", "<|tool_call_start|>[get_weather(city='Rome')]<|tool_call_end|>"),
        ("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Rome"}}]'),
    ],
)
def test_other_formats(chat: openai.OpenAI, script: ScriptedModel, form: str, text: str) -> None:
    script.chat_format = ChatFormat(TOOL_FORMATS[form])
    (call,) = whole(chat, script, text).message.tool_calls
    assert call.function.arguments == '{"city": "Rome"}'
    assert streamed(chat, script, text)["calls"][0]["arguments"] == '{"city": "Rome"}'


def test_special_tokens_are_shown_where_they_are_markers(chat: openai.OpenAI, script: ScriptedModel) -> None:
    for script.special_markers in (True, False):
        whole(chat, script, "ok")
        assert script.seen[-1].params.skip_special_tokens != script.special_markers


# --- the other APIs read answers in the same way ------------------------------------------------------------------


def test_anthropic_messages(server: Running, script: ScriptedModel) -> None:
    anthropic = pytest.importorskip("anthropic")
    tools = [{"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}]
    asked: Any = {"model": "scripted", "max_tokens": 500, "messages": ASK["messages"], "tools": tools}
    text = f"<think>hm</think>I look.{CALL}"
    expected = [("thinking", "hm"), ("text", "I look."), ("tool_use", {"city": "Rome"})]

    def told(message: Any) -> list[tuple[str, Any]]:
        return [
            (b.type, b.thinking if b.type == "thinking" else b.text if b.type == "text" else b.input)
            for b in message.content
        ]

    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        script.scripts = [text] * 2
        message = client.messages.create(**asked)
        assert (told(message), message.stop_reason) == (expected, "tool_use")
        with client.messages.stream(**asked) as stream:
            assert told(stream.get_final_message()) == expected
        script.scripts = [CALL[:-16], OTHER]
        cut = client.messages.create(**asked)
        assert (told(cut), cut.stop_reason) == ([("text", CALL[:-16])], "end_turn")
        with pytest.raises(anthropic.APIError, match="tool_choice asks for"):
            client.messages.create(**asked, tool_choice={"type": "any"})
        with pytest.raises(anthropic.BadRequestError, match="not among the tools"):
            client.messages.create(**asked, tool_choice={"type": "tool", "name": "clock"})


def test_openai_responses(chat: openai.OpenAI, script: ScriptedModel) -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": False}]
    asked: Any = {"model": "scripted", "input": "hi", "tools": tools}
    script.scripts = [f"<think>hm</think>I look.{CALL}"] * 2 + ["no call"]
    response = chat.responses.create(**asked)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.output[2].name, response.output[2].arguments) == ("get_weather", '{"city": "Rome"}')
    *_, last = chat.responses.create(**asked, stream=True)
    assert [item.type for item in last.response.output] == ["reasoning", "message", "function_call"]
    with pytest.raises(openai.UnprocessableEntityError):
        chat.responses.create(**asked, tool_choice={"type": "function", "name": "get_weather"})


def test_functions_in_namespaces_keep_both_names(chat: openai.OpenAI, script: ScriptedModel) -> None:
    """As a coding agent groups them; templates know no groups, so the model gets one name of two parts."""
    inner: Any = {"type": "function", "name": "stop", "parameters": {"type": "object"}, "strict": False}
    plain: Any = inner | {"name": "look"}
    asked: Any = {"model": "scripted", "tools": [plain, {"type": "namespace", "name": "agents", "tools": [inner]}]}
    call = '<tool_call>\n{"name": "agents__stop", "arguments": {}}\n</tool_call>'
    script.scripts = [call, call, "done"]
    (item,) = chat.responses.create(**asked, input="hi").output
    assert (item.name, item.namespace, item.arguments) == ("stop", "agents", "{}")
    assert [tool["function"]["name"] for tool in script.rendered[1]] == ["look", "agents__stop"]
    events = list(chat.responses.create(**asked, input="hi", stream=True))
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done.name == "stop"
    (last,) = events[-1].response.output
    assert (last.name, last.namespace) == ("stop", "agents")

    back: Any = [
        {"role": "user", "content": "hi"},
        item,
        {"type": "function_call_output", "call_id": "1", "output": ""},
    ]
    chat.responses.create(**asked, input=back)
    assert script.rendered[0][1]["tool_calls"][0]["function"]["name"] == "agents__stop"


def test_a_tool_that_is_none_is_named(server: Running) -> None:
    body = {"messages": ASK["messages"], "tools": [WEATHER, {"type": "function", "function": {"name": ""}}]}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools[1].function.name")
