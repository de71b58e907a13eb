"""Which format a model's answers have: from its template, its vocabulary, or the operator."""

from __future__ import annotations

import pytest

from statemark.errors import ConfigurationError
from statemark.parsing import ALIASES, TOOL_FORMATS, choose_format, opens_reasoning
from statemark.parsing.schema import argument_types
from statemark.parsing.xml_calls import typed


def chosen(template: str | None, *tokens: str, **options: str) -> tuple[str | None, bool]:
    made = choose_format(template, tokens.__contains__, **options)
    return (made.tools and made.tools.name, made.thinks)


@pytest.mark.parametrize(
    ("template", "tokens", "name"),
    [
        ("... <tool_call>\n{\"name\": ...", (), "hermes"),
        ("<tool_call>\n<function=example>\n<parameter=x>", (), "qwen3_coder"),
        ("List of tools: <|tool_list_start|>[", (), "lfm2"),
        ("List of tools: [", ("<|tool_call_start|>", "<|tool_call_end|>"), "lfm2"),
        ("'<|tool_call|>' + ...", (), "granite"),
        ("{{ messages }}", ("<tool_call>", "</tool_call>"), "hermes"),
        ("{{ messages }}", (), None),
        (None, (), None),
    ],
)  # fmt: skip
def test_the_template_decides_then_the_vocabulary(template: str | None, tokens: tuple[str, ...], name: str) -> None:
    assert chosen(template, *tokens) == (name, False)


def test_reasoning_is_parsed_where_the_model_knows_the_tags() -> None:
    assert chosen("... <think>\n\n</think>\n\n")[1]
    assert chosen("...", "<think>", "</think>")[1]
    assert not chosen("...", "<think>")[1]
    assert not chosen("... </think>", reasoning="none")[1]
    assert chosen("...", reasoning="think")[1]


@pytest.mark.parametrize("name", [*TOOL_FORMATS, *ALIASES])
def test_an_operator_can_choose(name: str) -> None:
    assert chosen("<|tool_call|>", tools=name)[0] == ALIASES.get(name, name)
    assert chosen("<|tool_call|>", tools="none")[0] is None


@pytest.mark.parametrize("option", [{"tools": "llama3"}, {"reasoning": "deep"}])
def test_unknown_names_are_errors(option: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="unknown") as caught:
        chosen("", **option)
    assert "auto" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("prompt", "continued", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", None, True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None, False),
        ("<|im_start|>assistant\n", None, False),
        ("user: <think>\nassistant:", None, False),
        ("...", "<think>so far", True),
        ("...<think>", "<think>so far</think>and", False),
        ("...<think>", "no tags", False),
    ],
)
def test_who_opened_the_think_section(prompt: str, continued: str | None, opened: bool) -> None:
    assert opens_reasoning(prompt, continued) == opened


def test_markers_that_must_be_shown() -> None:
    made = choose_format("<think></think>", lambda token: False, tools="lfm2")
    assert set(made.markers()) == {"<think>", "</think>", "<|tool_call_start|>", "<|tool_call_end|>"}


SCHEMA = {
    "properties": {
        "plain": {"type": "string"},
        "both": {"type": ["string", "null"]},
        "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "open": {"anyOf": [{"type": "integer"}, {}]},
        "all": {"allOf": [{"type": "integer"}, {"minimum": 1}]},
        "choice": {"enum": ["a", 1]},
        "fixed": {"const": True},
        "named": {"$ref": "#/$defs/a~1b"},
        "lost": {"$ref": "#/$defs/none/such"},
        "far": {"$ref": "http://example.org/schema"},
        "loop": {"$ref": "#/properties/loop"},
        "odd": 5,
    },
    "$defs": {"a/b": {"type": "number"}},
}


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("plain", {"string"}),
        ("both", {"string", "null"}),
        ("either", {"integer", "null"}),
        ("open", set()),
        ("all", {"integer"}),
        ("choice", {"string", "integer"}),
        ("fixed", {"boolean"}),
        ("named", {"number"}),
        *((name, set()) for name in ("lost", "far", "loop", "odd", "absent")),
    ],
)
def test_types_of_an_argument(name: str, types: set[str]) -> None:
    assert argument_types(SCHEMA, name) == types


@pytest.mark.parametrize("schema", [{}, {"properties": 5}, {"properties": []}])
def test_a_schema_that_is_none(schema: dict[str, object]) -> None:
    assert argument_types(schema, "x") == frozenset()


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"string"}, '"5"'),
        ("5", {"integer"}, "5"),
        ("5", {"number"}, "5"),
        (" 5 ", {"integer"}, "5"),
        ("5.5", {"integer"}, '"5.5"'),
        ("5.5", set(), "5.5"),
        ("five", {"integer"}, '"five"'),
        ("true", {"boolean"}, "true"),
        ("True", {"boolean"}, "true"),
        ("true", {"string", "null"}, '"true"'),
        ("null", {"string", "null"}, "null"),
        ("None", {"integer", "null"}, "null"),
        ("null", {"integer"}, '"null"'),
        ("[1, 2]", {"array"}, "[1, 2]"),
        ("{'a': True}", {"object"}, '{"a": true}'),
        ('{"a": "\\/"}', {"object"}, '{"a": "/"}'),
        ("{oops", {"object"}, '"{oops"'),
        ("", set(), '""'),
        ("", {"integer"}, '""'),
        ("007", set(), '"007"'),
        ("a\nb", set(), '"a\\nb"'),
    ],
)
def test_bare_values(text: str, types: set[str], value: str) -> None:
    assert typed(text, frozenset(types)) == value
