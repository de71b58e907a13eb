"""LangChain's chat model for OpenAI: whole, streamed, with tools and their results."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.conftest import CALL
from tests.server.live_server import Running
from tests.server.scripted_model import ScriptedModel

langchain = pytest.importorskip("langchain_openai")


@pytest.fixture(scope="module")
def model(server: Running) -> Any:
    return langchain.ChatOpenAI(base_url=f"{server.url}/v1", api_key="none", model="scripted", max_retries=0)


def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


def test_an_answer(model: Any, script: ScriptedModel) -> None:
    script.scripts = ["hello there"]
    answer = model.invoke("hi")
    assert answer.content == "hello there"
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] == "stop"


def test_a_stream(model: Any, script: ScriptedModel) -> None:
    script.scripts = ["hello there"]
    pieces = [piece.content for piece in model.stream("hi")]
    assert "".join(pieces) == "hello there"
    assert len([piece for piece in pieces if piece]) > 1


def test_tools_and_their_results(model: Any, script: ScriptedModel) -> None:
    script.scripts = [f"I look.{CALL}", "It is sunny."]
    bound = model.bind_tools([get_weather])
    talk: list[Any] = [("user", "weather in Rome?")]
    asked = bound.invoke(talk)
    (call,) = asked.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    talk += [asked, {"role": "tool", "tool_call_id": call["id"], "content": get_weather(**call["args"])}]
    assert bound.invoke(talk).content == "It is sunny."
    assert script.rendered[0][1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert script.rendered[0][2]["content"] == "sunny in Rome"


def test_streamed_tool_calls(model: Any, script: ScriptedModel) -> None:
    script.scripts = [CALL]
    whole = None
    for piece in model.bind_tools([get_weather]).stream("weather?"):
        whole = piece if whole is None else whole + piece
    assert whole is not None
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("get_weather", {"city": "Rome"})]
