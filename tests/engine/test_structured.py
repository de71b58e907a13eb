"""Grammars that the engine for them can't hold are refused, not answered with nothing."""

from __future__ import annotations

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
