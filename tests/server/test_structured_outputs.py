"""Answers of a model with random weights follow whatever structure is asked for; what none can follow is a 400."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.live_server import Running

HTTP = httpx.Client(timeout=120)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
ASK = {"prompt": "A pet:", "max_tokens": 600, "temperature": 1.0, "seed": 7}
MESSAGES = [{"role": "user", "content": "a pet"}]


def post(served: Running, path: str, body: dict[str, Any], status: int = 200) -> Any:
    response = HTTP.post(f"{served.url}{path}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def complete(served: Running, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = post(served, "/v1/completions", ASK | fields)["choices"][0]
    return choice


def is_pet(text: str) -> bool:
    pet = json.loads(text)
    return (
        set(pet) == {"name", "age", "kind"}
        and len(pet["name"]) <= 6
        and 0 <= pet["age"] <= 120
        and pet["kind"] in ("cat", "dog")
    )


PET = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": PET},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
    ],
)
@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema_is_followed_however_it_is_given(real: Running, fields: dict[str, Any], temperature: float) -> None:
    choice = complete(real, **fields, temperature=temperature)
    assert (choice["finish_reason"], is_pet(choice["text"])) == ("stop", True)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[ab]{3}-[0-9]{2}"}}, r"[ab]{3}-\d\d"),
        ({"guided_regex": "(red|green)!"}, "(red|green)!"),
        ({"structured_outputs": {"choice": ["yes", 'a "no"\n']}}, 'yes|a "no"\n'),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"structured_outputs": {"grammar": 'start: "<" /[0-9]{1,3}/ ">"'}}, r"<\d{1,3}>"),
        ({"guided_grammar": 'root ::= "x" [0-9] "y"'}, r"x\dy"),
    ],
)
def test_other_structures(real: Running, fields: dict[str, Any], pattern: str) -> None:
    for seed in range(3):
        choice = complete(real, **fields, seed=seed)
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"]), choice["text"]


def test_any_object(real: Running) -> None:
    choice = complete(real, response_format={"type": "json_object"}, max_tokens=400)
    assert choice["text"].startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["text"]), dict)


def test_every_api_has_its_way_to_ask(real: Running) -> None:
    chat = post(
        real, "/v1/chat/completions", {"messages": MESSAGES, "response_format": PET, "max_tokens": 600, "seed": 1}
    )
    assert is_pet(chat["choices"][0]["message"]["content"])
    text = {"format": {"type": "json_schema", "name": "pet", "schema": SCHEMA, "strict": True}}
    response = post(real, "/v1/responses", {"input": "a pet", "text": text, "max_output_tokens": 200, "seed": 1})
    assert is_pet(response["output"][0]["content"][0]["text"])
    config = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = post(real, "/v1/messages", {"messages": MESSAGES, "output_config": config, "max_tokens": 600, "seed": 1})
    assert is_pet(message["content"][0]["text"])
    assert message["stop_reason"] == "end_turn"


def test_inside_a_think_section_an_answer_is_free_and_behind_it_held(trained: Running) -> None:
    """Bias decides when the section ends: never, so that all is free, or at once."""
    think_end = trained.state.model().token_id("</think>")
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>so"}]
    asked = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False, "temperature": 0}

    def message(bias: int, **fields: Any) -> dict[str, Any]:
        body = asked | {"max_tokens": 12, "logit_bias": {str(think_end): bias}} | fields
        found: dict[str, Any] = post(trained, "/v1/chat/completions", body)["choices"][0]["message"]
        return found

    assert message(-100, guided_choice=["left", "right"]) == message(-100)
    assert message(-100)["reasoning_content"]
    held = message(100, guided_choice=["left", "right"])
    assert held["content"] in ("left", "right")
    assert "reasoning_content" not in held


def test_each_choice_goes_its_own_way(real: Running) -> None:
    found = post(real, "/v1/completions", ASK | {"n": 4, "guided_choice": ["a", "b", "c", "d"]})["choices"]
    assert {choice["text"] for choice in found} <= set("abcd")
    assert len(found) == 4


def test_batch_mates_change_nothing_and_are_not_changed(real: Running) -> None:
    """Constrained and free answers, alone and together: the same tokens and log-probabilities."""
    bodies = [
        ASK | {"logprobs": 5, "max_tokens": 24, "seed": n} | fields
        for n in range(2)
        for fields in ({}, {"guided_json": SCHEMA}, {"guided_regex": "[a-z ]{5,30}"}, {"temperature": 0})
    ]

    def ask(body: dict[str, Any]) -> Any:
        return post(real, "/v1/completions", body)["choices"]

    alone = [ask(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(ask, bodies))
    assert together == alone


def test_a_masked_answer_still_tells_the_models_own_numbers(real: Running) -> None:
    """Log-probabilities are those before the mask: the first token's are the free answer's."""
    fields = {"logprobs": 5, "temperature": 0, "max_tokens": 1}
    free = complete(real, **fields)["logprobs"]["top_logprobs"][0]
    held = complete(real, **fields, guided_regex="[0-9]+")["logprobs"]["top_logprobs"][0]
    assert list(free.items())[:5] == list(held.items())[:5]


def test_ignore_eos_does_not_go_beyond_a_whole_answer(real: Running) -> None:
    choice = complete(real, guided_choice=["yes"], ignore_eos=True)
    assert (choice["text"], choice["finish_reason"]) == ("yes", "stop")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"guided_json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum (5) is greater"),
        ({"guided_json": {"enum": []}}, "nsatisfiable"),
        ({"guided_json": {"type": "frob"}}, "frob"),
        ({"guided_json": {"$ref": "#/nowhere"}}, "nowhere"),
        ({"guided_json": "{"}, "not valid JSON"),
        ({"guided_json": "[]"}, "a schema is a JSON object"),
        ({"guided_json": 5}, "expected str | object"),
        ({"guided_regex": "(("}, "regex"),
        ({"guided_choice": []}, "at least one text"),
        ({"guided_choice": [""]}, "at least one text"),
        ({"guided_grammar": "start: nope"}, "nope"),
        ({"guided_grammar": "root ::= nope ("}, "GBNF"),
        ({"guided_regex": "x" * (2**20 + 1)}, "at most 1,048,576"),
        ({"response_format": {"type": "poem"}}, "'poem' is not supported"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {}}, "exactly one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "exactly one of"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "one structure only"),
    ],
)
def test_what_no_answer_can_follow_is_refused(served: Running, fields: dict[str, Any], words: str) -> None:
    for path, body in (
        ("/v1/completions", {"prompt": "a", "max_tokens": 2}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}),
    ):
        error = post(served, path, body | fields, 400)["error"]
        assert words in error["message"]
