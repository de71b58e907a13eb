"""Grammars that the engine for them can't hold are refused, not answered with nothing."""

from __future__ import annotations

import json

import pytest

from statemark import bundled
from statemark.engine.params import Structure
from statemark.engine.structured import Grammars
from statemark.errors import InvalidRequestError
from statemark.models import load_tokenizer


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = load_tokenizer(bundled.path())
    return Grammars(lambda: (bundled.path() / "tokenizer.json").read_text(), tokenizer.vocab_size, [0])


@pytest.mark.parametrize(
    "structure",
    [
        Structure("regex", "a{1000000}"),
        Structure("json", '{"type": "string", "pattern": "^(a{1000}){1000}$"}'),
    ],
)
def test_a_structure_that_is_too_large_is_refused(grammars: Grammars, structure: Structure) -> None:
    with pytest.raises(InvalidRequestError, match="too many expressions"):
        grammars.compile(structure)


def test_one_that_fits_allows_its_beginnings(grammars: Grammars) -> None:
    allowed = grammars.compile(Structure("regex", "ab{3}")).start().allowed()
    assert allowed is not None
    assert 0 < allowed.sum() < len(allowed)


def test_a_broken_matcher_allows_nothing(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    matching = grammars.compile(Structure("regex", "ab{3}")).start()

    class Broken:
        def compute_bitmask(self) -> bytes:
            return b"\xff" * 4096

        def is_error(self) -> bool:
            return True

    monkeypatch.setattr(matching, "_matcher", Broken())
    allowed = matching.allowed()
    assert allowed is not None
    assert not allowed.any()


PRETTY = {"a": 1, "b": {"c": [1, 2, {}], "d": "x y"}}


@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_json_may_be_laid_out_as_json_is(grammars: Grammars, indent: int | str | None) -> None:
    assert follows(grammars, json.dumps(PRETTY, indent=indent))
    assert follows(grammars, json.dumps(PRETTY, separators=(",", ":")))


@pytest.mark.parametrize("space", ["  ", "\n\n", " \n", "\n" + 21 * " "])
def test_white_space_in_json_has_an_end(grammars: Grammars, space: str) -> None:
    assert not follows(grammars, f'{{"a":{space}1}}')


def test_a_schema_may_allow_more_white_space(grammars: Grammars) -> None:
    schema = {"type": "object", "x-guidance": {"whitespace_pattern": r"[ \n]+"}}
    assert follows(grammars, '{"a":   \n\n 1}', Structure("json", json.dumps(schema)))


def follows(grammars: Grammars, text: str, structure: Structure | None = None) -> bool:
    """Whether the bundled model's tokens of the text are all allowed, one after another, and may be all."""
    matching = grammars.compile(structure or Structure("json_object", "")).start()
    for token_id in load_tokenizer(bundled.path()).encode(text):
        allowed = matching.allowed()
        if allowed is None or not allowed[token_id]:
            return False
        matching.add(token_id)
    allowed = matching.allowed()
    return matching.ended or (allowed is not None and bool(allowed[0]))
