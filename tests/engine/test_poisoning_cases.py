"""The public reports of kind poisoning, P1 to P9, and L9 and L13, which are about what may be found, by their names.

The toy executor's answers depend on every state and page entry that they use, and its memory is full of rubbish, so an
answer that equals the cold one says that nothing foreign was read. P3's look-ahead slots don't
exist here: what could go wrong in their place is an answer at the edge of a page. Nor do P6's shared index arrays. P9:
this engine takes text alone, and a request with an image is refused (`tests/server/test_server_bad_input.py`).
"""

from __future__ import annotations

import numpy as np
import pytest

from statemark.cache import Budget, CacheManager
from tests.engine.harness import cold, drain, engine, one, request, step
from tests.toy import ToyExecutor


def text(n: int, start: int = 0) -> list[int]:
    return [(start + i * 7) % 50 for i in range(n)]


@pytest.mark.parametrize("budget", [3, 17, 36, 64, 364])
def test_p1_states_from_chunks_that_end_anywhere_are_found_under_their_own_position_only(budget: int) -> None:
    """A is asked, B goes on from it and is cut in odd chunks beside another request, A is asked again."""
    e = engine(max_num_batched_tokens=budget, max_num_seqs=2)
    a, b = text(200), text(200) + text(70, 5)
    for name, prompt in (("a", a), ("b", b), ("a again", a), ("b again", b)):
        e.add_request(request(f"{name}, company", text(40, len(name)), max_tokens=9))
        e.add_request(request(name, prompt))
        answer = drain(e)[name, 0]
        assert answer.digest() == cold(request("c", prompt)).digest(), name
    for mark in e.cache.index.marks():
        assert {int(count) for count in e.executor.stamps(mark.slot)[:, 0]} == {mark.position}


@pytest.mark.parametrize("pages", [1, 2, 3])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_p3_prompts_that_end_at_the_edge_of_a_page_beside_others_in_a_full_cache(pages: int, off: int) -> None:
    x = ToyExecutor()
    e = engine(x, cache_bytes=16 * x.page_bytes + 5 * x.slot_bytes, max_num_seqs=3, max_model_len=100)
    seen: dict = {}
    requests = [request(f"r{i}", text(16 * pages + off, i % 2), max_tokens=20) for i in range(6)]
    for r in requests:
        e.add_request(r)
    drain(e, seen)
    for r in requests:
        assert seen[r.request_id, 0].digest() == cold(r).digest()


def test_p5_no_slot_that_is_used_again_shows_what_another_request_left_in_it() -> None:
    x = ToyExecutor()
    e = engine(x, cache_bytes=8 * x.page_bytes + 3 * x.slot_bytes, max_model_len=80)
    for i in range(12):
        r = request(f"r{i}", text(30 + i, i), salt=str(i % 3), use_cache=i % 4 > 0)
        assert one(e, r).digest() == cold(r).digest()
    assert e.stats()["marks_evicted"] > 5, "or no slot was used again"


@pytest.mark.parametrize("again", [1, 2, 3, 16, 17, 63, 64])
@pytest.mark.parametrize("budget", [2, 5, 512])
def test_p7_any_number_of_tokens_after_a_hit_goes_on_from_its_state(again: int, budget: int) -> None:
    e = engine(max_num_batched_tokens=budget, max_num_seqs=1)
    one(e, request("first", text(90), max_tokens=1))
    prompt = text(90) + text(again, 3)
    answer = one(e, request("more", prompt))
    assert answer.cached == 90 or again == 1
    assert answer.digest() == cold(request("c", prompt)).digest()


def test_p8_nothing_comes_from_a_finished_conversation_that_only_looks_alike_and_the_count_is_true() -> None:
    e = engine(max_num_seqs=2)
    for i in range(4):
        e.add_request(request(f"old {i}", text(120, i), max_tokens=6))
    drain(e)
    almost = [text(120)[0] + 1, *text(120)[1:]]  # differs in the first token alone
    computed = e.tokens_computed
    answer = one(e, request("new", almost, max_tokens=1))
    assert (answer.cached, e.tokens_computed - computed) == (0, 120)
    assert answer.digest() == cold(request("c", almost, max_tokens=1)).digest()


def test_l9_a_hit_never_goes_beyond_the_pages_that_agree_and_a_slot_is_had_whole_or_not_at_all() -> None:
    cache = CacheManager(Budget(5 * 40 + 4 * 10, page_bytes=10, slot_bytes=40), "model")
    leases = []
    while (lease := cache.begin(cache.index.chain(""), np.arange(20, dtype=np.int32))) is not None:
        leases.append(lease)
        cache.check_integrity(leases)
    assert len(leases) == 6, "all bytes are slots"
    cache.check_integrity(leases)
    e = engine(max_num_batched_tokens=7, max_num_seqs=3)
    for i in range(5):
        e.add_request(request(f"r{i}", text(100 - 15 * i), turns=[20, 50]))
        for _ in range(5):
            step(e, {})
        for seq in e.scheduler.running:
            found = seq.lease.lookup
            assert found.position <= found.shared
            assert found.page_match <= found.shared


@pytest.mark.parametrize("prompt", [4, 5, 12, 64, 68])
def test_l13_short_prompts_have_marks_and_the_deepest_one_before_a_change_is_taken(prompt: int) -> None:
    e = engine()
    one(e, request("a", text(prompt), turns=[prompt // 2], max_tokens=1))
    assert one(e, request("again", text(prompt), max_tokens=1)).cached == prompt - 1
    changed = [*text(prompt)[: prompt // 2], 48, 47, 46]
    assert one(e, request("changed", changed, max_tokens=1)).cached == prompt // 2
