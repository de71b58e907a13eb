"""What is said about a cache that is too small for a request, and about who waits for room in it."""

from __future__ import annotations

import re

import pytest

from statemark.errors import ConfigurationError
from tests.engine.harness import drain, engine, request, step
from tests.toy import ToyExecutor


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


def test_who_waits_for_a_page_is_counted_once() -> None:
    executor = ToyExecutor()
    room = 10 * executor.page_bytes + 2 * executor.slot_bytes + executor.page_bytes // 2  # a state fits, no page beside
    e = engine(executor, cache_bytes=room)
    e.add_request(request("running", [5] * 150, max_tokens=9))
    seen: dict = {}
    step(e, seen)
    e.add_request(request("waits", [i * 7 % 41 for i in range(90)], max_tokens=2))
    for _ in range(4):
        step(e, seen)
        assert e.stats()["requests_waiting"] == 1
    assert e.stats()["lookups"] == 1, "it has not begun"
    drain(e, seen)
    assert (e.stats()["lookups"], e.stats()["tokens_asked"]) == (2, 150 + 90)
