"""What is said about a cache that is too small for a request."""

from __future__ import annotations

import re

import pytest

from statemark.errors import ConfigurationError
from tests.engine.harness import engine


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"cache_bytes": 100}, "at least 16,640 for the model's 4,096 tokens; 320 is the least, for 16"),
        ({"cache_bytes": 100, "max_model_len": 100}, "raise cache_memory to at least 704"),
        ({"cache_bytes": 256 + 64, "max_model_len": 100}, "at least 704, or lower max_model_len to 16"),
    ],
)
def test_a_cache_that_is_too_small_says_what_would_do(options, hint):
    with pytest.raises(ConfigurationError) as caught:
        engine(**options)
    assert caught.value.hint.endswith(hint)
    enough = int(re.search("least ([0-9,]+)", hint)[1].replace(",", ""))
    assert engine(**{**options, "cache_bytes": enough}).max_model_len == options.get("max_model_len", 4096)
