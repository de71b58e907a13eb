"""LiteLLM, which many agents speak through: by OpenAI's API and by Anthropic's."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.clients.conftest import CALL
from tests.server.live_server import Running
from tests.server.scripted_model import ScriptedModel

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or it asks the network when imported
litellm = pytest.importorskip("litellm")

HI: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def ask(server: Running, **fields: Any) -> Any:
    common = {"model": "hosted_vllm/scripted", "api_base": f"{server.url}/v1", "api_key": "none", "num_retries": 0}
    return litellm.completion(**(common | {"messages": HI} | fields))


def test_an_answer_with_its_reasoning(server: Running, script: ScriptedModel) -> None:
    script.scripts = ["<think>hm</think>hello"]
    answer = ask(server)
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].message.reasoning_content == "hm"
    assert answer.usage.completion_tokens > 0


def test_a_stream(server: Running, script: ScriptedModel) -> None:
    script.scripts = ["hello there"]
    chunks = list(ask(server, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello there"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_tool_calls_whole_and_streamed(server: Running, script: ScriptedModel) -> None:
    script.scripts = [CALL, CALL]
    answer = ask(server, tools=TOOLS, tool_choice="auto")
    whole = litellm.stream_chunk_builder(list(ask(server, tools=TOOLS, stream=True)))
    for found in (answer, whole):
        (call,) = found.choices[0].message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rome"}')
        assert found.choices[0].finish_reason == "tool_calls"


def test_by_anthropics_api(server: Running, script: ScriptedModel) -> None:
    script.scripts = [f"I look.{CALL}"]
    answer = ask(server, model="anthropic/scripted", api_base=server.url, tools=TOOLS, max_tokens=500)
    assert answer.choices[0].message.content == "I look."
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Rome"}')


def test_an_error_is_an_error(server: Running) -> None:
    with pytest.raises(litellm.BadRequestError, match="unknown field"):
        ask(server, extra_body={"surprise": 1})
