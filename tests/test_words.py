"""Small words of messages."""

from __future__ import annotations

import pytest

from statemark.words import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 tokens"), (1, "1 token"), (2_000, "2,000 tokens")])
def test_plurals(number: int, words: str) -> None:
    assert counted(number, "token") == words
