"""What lookups say about themselves, and the counters of tokens lost for want of a mark."""

import logging

import pytest

from statemark.cache.explain import EVICTED, explain
from tests.cache.asking import Asking, few_marks, join, text
from tests.engine.harness import engine, request, step


def said(asking, tokens, turns=()):
    return explain(asking.cache.find(asking.cache.index.chain("s"), tokens), len(tokens), turns)


def test_nothing_cached():
    got = said(Asking(), text(50))
    assert (got.page_match, got.shared, got.reused, got.first_different, got.lost, got.veto) == (0, 0, 0, 0, 0, None)


def test_page_match_and_shared_tokens_are_apart():
    a = Asking()
    a.ask(text(100), turns=[30, 96])
    got = said(a, join(text(75), text(40, 900)), turns=[10, 30, 80])
    assert (got.page_match, got.shared, got.reused, got.first_different) == (64, 75, 30, 75)
    assert (got.turn, got.lost, got.veto) == (2, 45, "unmarked")
    assert str(got) == (
        "30 of 115 prompt tokens reused; 75 are cached, token 75 (turn 2) is new; 45 tokens lost: no mark was planned "
        "between them"
    )


def test_the_role_is_that_of_the_message_in_which_the_first_new_token_lies():
    a = Asking()
    a.ask(text(100))
    roles = ("preamble", "system", "user", "generation header")
    for shared, role in ((5, "preamble"), (10, "system"), (79, "system"), (80, "user"), (99, "generation header")):
        look = a.cache.find(a.cache.index.chain("s"), join(text(shared), text(30, 900)))
        got = explain(look, shared + 30, [10, 80, 96], roles)
        assert (got.first_different, got.role) == (shared, role)
        assert f"({'turn ' + str(got.turn)}, {role}) is new" in str(got)
    assert explain(a.cache.find(a.cache.index.chain("s"), text(100)), 100, [10, 80, 96], roles).role is None, (
        "nothing is new"
    )
    assert explain(look, 129, [10, 80], roles).role is None, "roles of other turns"


def test_a_mark_that_found_no_room_is_named_as_the_reason():
    a = few_marks(3)
    for i in range(3):
        a.ask(text(9_000, 100_000 * i), turns=[8_996], out=2)
    a.ask(text(9_000, 500_000), turns=[4_000, 8_996], out=2)
    got = said(a, join(text(4_500, 500_000), text(9, 5_000)))
    assert (got.reused, got.veto) == (0, "no_room")
    a.ask(join(text(4_500, 500_000), text(9, 5_000)))
    assert a.cache.counters["tokens_lost_no_room"] == 4_500


def test_a_damaged_mark_is_named_as_the_reason():
    a = Asking()
    a.ask(text(900), turns=[500])
    a.cache.discard(next(m for m in a.cache.index.marks() if m.position == 500))
    assert said(a, join(text(505), text(9, 5_000))).veto == "damaged"


def test_a_prompt_that_is_cached_whole_loses_nothing_by_its_last_token():
    a = Asking()
    a.ask(text(100))
    got = said(a, text(100))
    assert (got.shared, got.reused, got.first_different, got.lost, got.veto) == (100, 99, None, 0, None)


def test_an_evicted_mark_is_named_as_the_reason_and_counted():
    a = few_marks(4)
    prompt = text(900)
    a.ask(prompt, turns=[200, 400, 600])
    gone = next(m for m in a.cache.index.marks() if m.position == 400)
    gone.node.missing = EVICTED
    a.cache._evict(gone)
    got = said(a, join(prompt[:450], text(9, 5_000)))
    assert (got.reused, got.shared, got.veto) == (200, 450, "evicted")
    a.ask(join(prompt[:450], text(9, 5_000)))
    assert a.cache.counters["tokens_lost_evicted"] == 250


def test_eviction_leaves_its_reason_where_deeper_pages_stay():
    a = few_marks(5)
    a.ask(text(8_000), turns=[1_000, 7_996])
    for i in range(6):
        a.ask(text(700, 100_000 * (i + 1)))
    look = a.cache.find(a.cache.index.chain("s"), join(text(5_000), text(5, 900_000)))
    if look.shared > look.position:
        assert explain(look, 5_005).veto == "evicted"


@pytest.mark.parametrize("caching", [True, False])
def test_the_engine_hands_it_on_with_the_first_token_and_logs_it(caching, caplog):
    e = engine(enable_prefix_caching=caching)
    prompt = [i * 7 % 50 for i in range(100)]
    with caplog.at_level(logging.DEBUG, logger="statemark.engine.scheduler"):
        for name in ("a", "b"):
            e.add_request(request(name, prompt, turns=[40], max_tokens=3))
            outputs = []
            while e.has_work():
                outputs += e.step()
                e.check_integrity()
            assert [o.lookup is not None for o in outputs] == [caching, False, False]
            if caching:
                assert outputs[0].lookup.reused == outputs[0].num_cached_tokens
    lines = [r.getMessage() for r in caplog.records if "prompt tokens reused" in r.getMessage()]
    assert len(lines) == (2 if caching else 0)
    if caching:
        assert lines[1].startswith("request b: 99 of 100 prompt tokens reused; 100 are cached")
        assert e.stats()["lookups"] == 2


def test_a_request_that_may_not_read_the_cache_has_no_lookup():
    e = engine()
    e.add_request(request("a", [1, 2, 3], use_cache=False, max_tokens=1))
    seen = {}
    step(e, seen)
    assert e.stats().get("lookups", 0) == 0
