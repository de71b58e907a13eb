"""Grammars of forced calls: what follows one is read as calls of offered tools whose arguments fit their schemas."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from statemark import bundled
from statemark.engine.params import Structure
from statemark.engine.structured import Grammars, Matching
from statemark.parsing import TOOL_FORMATS
from statemark.parsing.call_grammar import call_grammar
from tests.parsing.answers import WRITTEN, CallSpec, found_calls, parsed

FORMS = sorted(TOOL_FORMATS)
TOKENIZER = Tokenizer.from_file(str(Path(bundled.__file__).parent / "tokenizer.json"))
END = TOKENIZER.token_to_id("<|im_end|>")
GRAMMARS = Grammars(TOKENIZER.to_str, TOKENIZER.get_vocab_size(), [END])
BOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["car", 'a "bike"', "::="]},
        "days": {"type": "integer", "minimum": 1, "maximum": 12},
        "now": {"type": "boolean"},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "maxItems": 2},
    },
    "required": ["days", "kind"],
    "additionalProperties": False,
    "$defs": {"stop": {"enum": [1, 2]}},
}
NOTE: dict[str, Any] = {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False}
TOOLS = {"book": BOOK, "note.it-2": NOTE}


def start(form: str, tools: dict[str, Any], *, one_call: bool = False) -> Matching:
    grammar = call_grammar(TOOL_FORMATS[form], tools, one_call=one_call, token_id=TOKENIZER.token_to_id)
    assert grammar is not None
    return GRAMMARS.compile(Structure("grammar", grammar)).start()


def follows(matching: Matching, text: str) -> bool:
    """Whether `text` is a whole answer of the grammar."""
    for token in TOKENIZER.encode(text, add_special_tokens=False).ids:
        allowed = matching.allowed()
        if matching.ended or allowed is None or not allowed[token]:
            return False
        matching.add(token)
    if matching.ended:
        return True
    allowed = matching.allowed()
    return allowed is not None and bool(allowed[END])


def wandered(matching: Matching, rng: random.Random) -> str:
    """An answer of a model that knows nothing but the mask."""
    found: list[int] = []
    while not matching.ended:
        allowed = matching.allowed()
        assert allowed is not None
        assert allowed.any()
        token = rng.choice(allowed.nonzero()[0].tolist())
        if token == END:
            break
        found.append(token)
        matching.add(token)
    return TOKENIZER.decode(found, skip_special_tokens=False)


def fits(call: CallSpec) -> bool:
    name, arguments = call
    if name == "note.it-2":
        return set(arguments) <= {"on"} and all(isinstance(value, bool) for value in arguments.values())
    return (
        name == "book"
        and {"days", "kind"} <= set(arguments) <= set(BOOK["properties"])
        and arguments["days"] in range(1, 13)
        and arguments["kind"] in BOOK["properties"]["kind"]["enum"]
        and isinstance(arguments.get("now", True), bool)
        and all(stop in (1, 2) for stop in arguments.get("stops", []))
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("one_call", [True, False])
def test_whatever_follows_it_is_calls_that_fit(form: str, one_call: bool) -> None:
    for seed in range(25):
        text = wandered(start(form, TOOLS, one_call=one_call), random.Random(seed))
        answer = parsed(form, text, tools=TOOLS, thinks=False)
        calls = found_calls(answer)
        assert calls, text
        assert answer.content.strip() == "", text
        assert all(fits(call) for call in calls), text
        assert len(calls) == 1 or not one_call


@pytest.mark.parametrize("form", FORMS)
def test_calls_as_models_write_them_follow_it(form: str) -> None:
    whole = [("book", {"kind": "car", "days": 3, "stops": [1, 2]}), ("note.it-2", {}), ("note.it-2", {"on": True})]
    for calls in (whole[:1], whole[1:2], whole):
        text = WRITTEN[form](calls)
        if form == "lfm2":  # JSON's spelling of values, which the parser reads too
            text = text.replace("True", "true").replace("'", '"')
        assert follows(start(form, TOOLS), text), text
        assert follows(start(form, TOOLS), f"\n\n{text}")
        assert follows(start(form, TOOLS, one_call=True), text) == (len(calls) == 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "call",
    [
        ("book", {"kind": "car"}),
        ("book", {"kind": "boat", "days": 3}),
        ("book", {"kind": "car", "days": 13}),
        ("book", {"kind": "car", "days": 3, "more": 1}),
        ("other", {}),
    ],
)
def test_what_does_not_fit_does_not_follow_it(form: str, call: CallSpec) -> None:
    assert not follows(start(form, TOOLS), WRITTEN[form]([call]))
    assert not follows(start(form, TOOLS), "no call")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", ["Rome", "", "5", "a\n\nb </p", 'x"\\y', "grün"])
def test_texts_are_free(form: str, text: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": "d"}}, "required": ["city"]}
    call = ("f", {"city": text})
    if form == "lfm2":  # Python's quotes aren't what the grammar asks for
        written = f"<|tool_call_start|>[f(city={json.dumps(text, ensure_ascii=False)})]<|tool_call_end|>"
    else:
        written = WRITTEN[form]([call])
    assert follows(start(form, {"f": schema}), written)
    assert found_calls(parsed(form, written, tools={"f": schema}, thinks=False)) == [call]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}}},
        {"type": "object", "properties": {"a": {"type": ["string", "integer"], "minimum": 3}}},
        {"type": "object", "properties": {"a<": {"type": "integer"}}},
        {"type": "object", "required": ["a"]},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    ],
)
def test_what_bare_values_can_not_be_held_to_is_not_promised(schema: dict[str, Any]) -> None:
    assert (
        call_grammar(TOOL_FORMATS["qwen3_coder"], {"f": schema}, one_call=True, token_id=TOKENIZER.token_to_id) is None
    )
    assert (
        call_grammar(TOOL_FORMATS["hermes"], {"f": schema}, one_call=True, token_id=TOKENIZER.token_to_id) is not None
    )


def test_markers_that_are_tokens_are_asked_for_as_such() -> None:
    ids = {"<|tool_call_start|>": 7}
    grammar = call_grammar(TOOL_FORMATS["lfm2"], {"f": {}}, one_call=True, token_id=ids.get)
    assert grammar is not None
    assert '<[7]> "["' in grammar
    assert '"<|tool_call_end|>"' in grammar
