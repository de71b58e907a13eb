"""tool_choice required or named: calls come whose arguments fit, in each family's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from statemark.parsing import TOOL_FORMATS
from statemark.server.loaded import LoadedModel
from tests.server.live_server import Running

HTTP = httpx.Client(timeout=120)
BOOK: Any = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "properties": {
                "kind": {"enum": ["car", "bike"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 12},
                "now": {"type": "boolean"},
            },
            "required": ["kind", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {"additionalProperties": False}}}
CLOSED = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 3}}, "required": ["a"]}
NEVER: Any = {"type": "function", "function": {"name": "never", "parameters": CLOSED}}
ASK: Any = {
    "messages": [{"role": "user", "content": "a trip"}],
    "tools": [BOOK, CLOCK],
    "parallel_tool_calls": False,
    "max_tokens": 200,
    "temperature": 1.0,
}
NAMED = {"type": "function", "function": {"name": "book"}}


@pytest.fixture(params=sorted(TOOL_FORMATS))
def form(trained: Running, request: pytest.FixtureRequest) -> Iterator[str]:
    model = trained.state.model()
    assert isinstance(model, LoadedModel)
    model.choose_format(tools=request.param)
    yield request.param
    model.choose_format()


def ask(trained: Running, **fields: Any) -> httpx.Response:
    return HTTP.post(f"{trained.url}/v1/chat/completions", json=ASK | fields)


def booked(call: dict[str, Any]) -> bool:
    arguments = json.loads(call["function"]["arguments"])
    return (
        call["function"]["name"] == "book"
        and {"kind", "days"} <= set(arguments) <= {"kind", "days", "now"}
        and arguments["kind"] in ("car", "bike")
        and arguments["days"] in range(1, 13)
        and isinstance(arguments.get("now", True), bool)
    )


def think_end(trained: Running) -> str:
    found = trained.state.model().token_id("</think>")
    assert found is not None
    return str(found)


def test_a_call_comes_and_its_arguments_fit(trained: Running, form: str) -> None:
    for seed in range(4):
        for choice in (NAMED, "required"):
            # Bias ends a think section that the header may have opened; inside the grammar it has no effect.
            answer = ask(trained, tool_choice=choice, seed=seed, logit_bias={think_end(trained): 100})
            assert answer.status_code == 200, answer.text
            (found,) = answer.json()["choices"]
            (call,) = found["message"]["tool_calls"]
            assert found["message"]["content"] is None
            assert found["finish_reason"] == "tool_calls"
            assert booked(call) or (choice == "required" and call["function"]["name"] == "clock")


def test_thinking_before_it_is_free(trained: Running, form: str) -> None:
    """Inside the section anything may be written; what comes behind its end is the call."""
    messages = [*ASK["messages"], {"role": "assistant", "content": "<think>so"}]
    inside = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    free = ask(trained, **inside, tool_choice="required", max_tokens=8, logit_bias={think_end(trained): -100})
    assert (free.status_code, free.json()["error"]["code"]) == (422, "tool_call_missing")
    answer = ask(trained, **inside, tool_choice=NAMED, seed=1, logit_bias={think_end(trained): 100})
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert booked(call)


def test_what_can_not_be_enforced_is_still_an_error_if_it_does_not_come(trained: Running, form: str) -> None:
    answer = ask(trained, tools=[NEVER], tool_choice="required", max_tokens=8)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "tool_call_missing")
