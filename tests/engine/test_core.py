"""The engine over the toy executor: what is reused, in which order things run, what bad input and faults do."""

from dataclasses import replace

import numpy as np
import pytest

from statemark.engine.scheduler import Scheduler
from statemark.errors import ConfigurationError, IntegrityError, InvalidRequestError
from tests.engine.harness import cold, drain, engine, one, request, step
from tests.toy import ToyExecutor


def text(n, start=0):
    return [(start + i * 7) % 50 for i in range(n)]


# --- reuse ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, 15, 16, 17, 32, 33, 100, 571])
@pytest.mark.parametrize("budget", [3, 16, 512])
def test_l12_reasking_any_prompt_computes_one_token(p, budget):
    e = engine(max_num_batched_tokens=budget, max_num_seqs=2)
    first = one(e, request("a", text(p), max_tokens=1))
    computed = e.tokens_computed
    again = one(e, request("b", text(p), max_tokens=1))
    assert (first.cached, again.cached) == (0, p - 1)
    assert e.tokens_computed - computed == 1
    assert first.digest() == again.digest() == cold(request("c", text(p), max_tokens=1)).digest()


@pytest.mark.parametrize("p", [1, 16, 40])
@pytest.mark.parametrize("new", [1, 15, 16, 40])
def test_o3_an_append_only_turn_computes_only_what_is_new(p, new):
    e = engine()
    first = one(e, request("a", text(p), max_tokens=9))
    prompt = text(p) + first.tokens + text(new, 3)
    second = one(e, request("b", prompt))
    assert second.cached == p + 9 - 1, "all that was run; the last token of an answer is sampled, not run"
    assert second.digest() == cold(request("c", prompt)).digest()


def test_l10_every_turn_of_a_chat_is_a_hit():
    e = engine()
    prompt, new = text(300), []
    for turn in range(6):
        answer = one(e, request(f"t{turn}", prompt, max_tokens=5))
        assert answer.cached == (len(prompt) - len(new) - 1 if turn else 0)
        new = text(20, turn)
        prompt = prompt + answer.tokens + new


def test_a_sibling_resumes_at_the_deepest_mark_at_or_below_the_divergence():
    e = engine()
    one(e, request("a", text(100), turns=[10, 33, 70]))
    sibling = text(60) + text(40, 1)
    answer = one(e, request("b", sibling))
    assert answer.cached == 33
    assert answer.digest() == cold(request("c", sibling)).digest()


def test_l11_the_turn_before_the_generation_header_is_kept():
    e = engine()
    head = [1, 2, 3]
    one(e, request("a", text(100) + head, turns=[40, 100], max_tokens=3))
    assert one(e, request("b", [*text(100), 9, 9, 9, 9])).cached == 100


def test_p4_an_aborted_prefill_is_resumed_where_it_stopped():
    e = engine(max_num_batched_tokens=50, max_num_seqs=4)
    e.add_request(request("a", text(400)))
    for _ in range(3):
        step(e, {})
    e.abort("a")
    assert not e.has_work()
    e.check_integrity()
    retry = one(e, request("a", text(400)))
    assert retry.cached == 150
    assert retry.digest() == cold(request("c", text(400))).digest()


def test_salts_are_apart_and_use_cache_false_neither_reads_nor_writes():
    e = engine()
    one(e, request("a", text(50), salt="x"))
    assert one(e, request("b", text(50), salt="y")).cached == 0
    assert one(e, request("c", text(50), salt="x", use_cache=False)).cached == 0
    marks = len(e.cache.index)
    one(e, request("d", text(50, 1), use_cache=False))
    assert len(e.cache.index) == marks
    assert one(e, request("e", text(50), salt="x")).cached == 49


def test_choices_share_the_prefill_and_differ_by_their_seed_alone():
    e = engine()
    r = request("a", text(200), n=4, temperature=1.0, seed=5)
    e.add_request(r)
    seen = drain(e)
    assert [seen[("a", i)].cached for i in range(4)] == [0, 199, 199, 199]
    assert len({tuple(seen[("a", i)].tokens) for i in range(4)}) > 1
    again = engine(enable_prefix_caching=False, max_num_batched_tokens=7, max_num_seqs=3)
    again.add_request(r)
    for key, other in drain(again).items():
        assert other.digest() == seen[key].digest()


def test_prompt_logprobs_are_those_of_every_position_whatever_the_chunks():
    rows = []
    for budget in (1, 7, 512):
        e = engine(max_num_batched_tokens=budget, max_num_seqs=1)
        one(e, request("warm", text(90)))
        got = one(e, request("a", text(90), prompt_logprobs=3))
        assert got.prompt_logprobs[0] is None
        assert [p.token_id for p in got.prompt_logprobs[1:]] == text(90)[1:]
        rows.append(got.prompt_logprobs)
    assert rows[0] == rows[1] == rows[2]
    assert one(engine(), request("b", [3], prompt_logprobs=3)).prompt_logprobs == [None]


# --- order ----------------------------------------------------------------------------------------------------


def test_decode_runs_in_every_step_beside_a_long_prefill():
    x = ToyExecutor()
    e = engine(x, max_num_batched_tokens=20, max_num_seqs=4)
    e.add_request(request("short", text(5), max_tokens=30))
    seen = {}
    step(e, seen)
    e.add_request(request("long", text(300, 1)))
    while ("long", 0) not in seen:
        step(e, seen)
        assert ("short", 5 + e.steps - 2, 1) in x.plans[-1]
    assert x.largest_step == 20
    drain(e, seen)


def test_prefill_is_in_arrival_order_and_the_budget_is_used_up():
    x = ToyExecutor()
    e = engine(x, max_num_batched_tokens=32, max_num_seqs=8)
    for i in range(4):
        e.add_request(request(f"r{i}", text(20, i), max_tokens=2))
    drain(e)
    assert x.plans[0] == [("r0", 0, 20), ("r1", 0, 12)]
    assert x.plans[1][:3] == [("r0", 20, 1), ("r1", 12, 8), ("r2", 0, 20)]


def test_no_more_than_max_num_seqs_run():
    e = engine(max_num_seqs=3)
    for i in range(10):
        e.add_request(request(f"r{i}", text(10, i)))
    seen = {}
    while e.has_work():
        step(e, seen)
        assert len(e.scheduler.running) <= 3
    assert len(seen) == 10


def test_out_of_memory_preempts_the_youngest_and_loses_nothing():
    x = ToyExecutor()
    e = engine(x, cache_bytes=2 * 256 + 14 * 64, max_model_len=200)
    rs = [request(f"r{i}", text(60, i), max_tokens=60) for i in range(3)]
    for r in rs:
        e.add_request(r)
    seen = drain(e)
    assert e.stats()["preemptions"] > 0
    for r in rs:
        assert seen[(r.request_id, 0)].digest() == cold(r).digest()
    assert e.cache.budget.committed_bytes <= 2 * 256 + 14 * 64


# --- ends -----------------------------------------------------------------------------------------------------


def test_how_a_request_ends():
    free = cold(request("a", text(9), max_tokens=8)).tokens
    assert one(engine(), request("a", text(9), max_tokens=8, eos=[free[3]])).tokens == free[: free.index(free[3]) + 1]
    ended = one(engine(), request("a", text(9), max_tokens=8, eos=[free[3]]))
    assert ended.finish == "stop"
    assert one(engine(), request("a", text(9), max_tokens=8, eos=[free[3]], ignore_eos=True)).tokens == free
    stopped = one(engine(), request("a", text(9), max_tokens=8, stop_token_ids=[free[2]]))
    assert (stopped.finish, stopped.tokens[-1]) == ("stop", free[2])
    assert one(engine(), request("a", text(9), max_tokens=8)).finish == "length"
    capped = one(engine(max_model_len=12), request("a", text(9), max_tokens=None))
    assert (capped.finish, len(capped.tokens)) == ("length", 3)
    banned = one(engine(), request("a", text(9), max_tokens=8, min_tokens=6, eos=[free[0]]))
    assert len(banned.tokens) >= 6
    assert free[0] not in banned.tokens[:5]


def test_finish_keeps_the_state_and_frees_the_rest():
    e = engine()
    e.add_request(request("a", text(30), max_tokens=100))
    seen = {}
    for _ in range(5):
        step(e, seen)
    e.finish("a", 0)
    assert not e.has_work()
    e.check_integrity()
    assert one(e, request("b", text(30) + seen[("a", 0)].tokens + [1])).cached == 34


def test_aborts_free_everything_at_any_moment():
    e = engine(max_num_seqs=2, max_num_batched_tokens=8)
    for i in range(5):
        e.add_request(request(f"r{i}", text(30, i), n=2))
    for i in range(5):
        step(e, {})
        e.abort(f"r{i}")
        e.abort(f"r{i}")
        e.check_integrity()
    assert not e.has_work()
    e.cache.reset()
    assert e.cache.budget.used_bytes == 0


# --- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [1, 50]}, "token id 50 is outside 0 to 49"),
        ({"prompt": [-1]}, "token id -1 is outside 0 to 49"),
        ({"prompt": [1] * 100}, "100 tokens.* 99"),
        ({"prompt": [1], "logit_bias": {50: 1.0}}, "logit_bias: token id 50"),
        ({"prompt": [1], "stop_token_ids": [77]}, "stop_token_ids: token id 77"),
    ],
)
def test_a_bad_request_is_refused_with_its_number_and_the_others_go_on(bad, words):
    e = engine(max_model_len=100)
    e.add_request(request("good", text(20)))
    step(e, {})
    with pytest.raises(InvalidRequestError, match=words):
        e.add_request(request("bad", bad.pop("prompt"), **bad))
    with pytest.raises(InvalidRequestError, match="in use"):
        e.add_request(request("good", [1]))
    assert drain(e)[("good", 0)].finish == "length"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
        ({"max_num_seqs": -3}, "max_num_seqs must be at least 1, got -3"),
        ({"cache_bytes": -1}, "cache_memory must be at least 1, got -1"),
        ({"max_num_batched_tokens": 4, "max_num_seqs": 5}, "4 is below max_num_seqs 5"),
        ({"cache_bytes": 256 + 63}, "too small for one request"),
        ({"cache_bytes": 256 + 64, "max_model_len": 100}, r"100 tokens: it takes 704 bytes \(256 .* and 64"),
        ({"max_model_len": 9999}, "outside 2 to 4096"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_numbers(options, words):
    with pytest.raises(ConfigurationError, match=words):
        engine(**options)


def test_a_small_cache_shortens_the_longest_request_and_says_so():
    e = engine(cache_bytes=256 + 10 * 64)
    assert e.max_model_len == 160
    assert "160 instead of the model's 4,096" in e.notices[0]
    assert one(e, request("a", text(150), max_tokens=None)).finish == "length"
    assert (
        one(e, request("b", text(150), max_tokens=1)).digest() == cold(request("c", text(150), max_tokens=1)).digest()
    )


# --- faults ---------------------------------------------------------------------------------------------------


def test_a_failing_request_ends_alone():
    x = ToyExecutor()
    e = engine(x, max_num_batched_tokens=16, max_num_seqs=4)
    good = [request(f"g{i}", text(40, i), max_tokens=6) for i in range(3)]
    for r in good[:2]:
        e.add_request(r)
    x.fail_on = "bad"
    e.add_request(request("bad", text(30, 9)))
    e.add_request(good[2])
    seen = drain(e)
    assert (seen[("bad", 0)].finish, seen[("bad", 0)].error) == ("error", "a planted failure")
    for r in good:
        assert seen[(r.request_id, 0)].digest() == cold(r).digest()


def test_choices_that_waited_for_a_failed_one_end_too():
    x = ToyExecutor()
    x.fail_on = "a"
    e = engine(x)
    e.add_request(request("a", text(9), n=3))
    seen = drain(e)
    assert {key: got.finish for key, got in seen.items()} == {("a", i): "error" for i in range(3)}


def test_nan_logits_end_that_request_only():
    class Sick(ToyExecutor):
        def logits(self, rows):
            out = super().logits(rows)
            out[0] = np.nan
            return out

    e = engine(Sick())
    e.add_request(request("a", text(9)))
    e.add_request(request("b", text(9, 1), max_tokens=1))
    seen = drain(e)
    assert seen[("a", 0)].finish == "error"
    assert "not finite" in seen[("a", 0)].error
    assert seen[("b", 0)].finish == "length"


class PlantedExecutor(ToyExecutor):
    """Kernels that leave a state where it doesn't belong."""

    fault = ""

    def run(self, plan):
        if self.fault == "other request's state" and len(plan.chunks) > 1:
            for a in plan.chunks[:1]:
                for b in plan.chunks[1:]:
                    if a.start == b.start and a.state_in >= 0 and b.state_in >= 0:
                        self.states[a.state_in] = self.states[b.state_in]
                        self._stamps[a.state_in] = self._stamps[b.state_in]
        super().run(plan)

    def _run_chunk(self, chunk):
        if self.fault == "one token late":
            chunk = replace(chunk, marks=[(min(o + 1, chunk.count), s, k) for o, s, k in chunk.marks])
        super()._run_chunk(chunk)


def test_a_mark_written_one_token_late_is_never_published():
    x = PlantedExecutor()
    x.fault = "one token late"
    e = engine(x)
    got = one(e, request("a", text(60), turns=[20]))
    assert got.finish == "error"
    assert "refused: the state in slot" in got.error
    assert len(e.cache.index) == 0
    assert e.stats()["integrity_errors"] == 1
    x.fault = ""
    assert one(e, request("b", text(60), turns=[20])).cached == 0


def test_another_requests_state_of_the_same_length_is_noticed_before_it_is_used():
    x = PlantedExecutor()
    e = engine(x)
    for i in range(2):
        e.add_request(request(f"r{i}", text(30, i), max_tokens=10))
    seen = {}
    step(e, seen)
    step(e, seen)
    x.fault = "other request's state"
    outs = e.step()
    assert outs == [], "the step is repeated one by one"
    x.fault = ""
    drain(e, seen)
    for i in range(2):
        assert seen[(f"r{i}", 0)].digest() == cold(request(f"r{i}", text(30, i), max_tokens=10)).digest()


def test_a_plan_that_fits_nobody_raises_instead_of_spinning(monkeypatch):
    e = engine()
    monkeypatch.setattr(Scheduler, "_admit", lambda self, seq: False)
    e.add_request(request("a", text(9)))
    with pytest.raises(IntegrityError, match="doesn't fit"):
        e.step()


def test_an_adapter_that_is_not_loaded_is_refused_by_name():
    e = engine()
    with pytest.raises(InvalidRequestError, match="adapter 'x' is not loaded") as caught:
        e.add_request(replace(request("a", text(5)), adapter="x"))
    assert caught.value.param == "adapter"
    assert not e.has_work()


def test_who_waits_goes_by_priority_then_by_arrival():
    e = engine(max_num_seqs=1)
    e.add_request(replace(request("running", [1, 2, 3], max_tokens=1), priority=9))
    e.step()
    for name, priority in (("a", 1), ("b", 0), ("c", 5), ("d", -1), ("e", 0), ("f", 1)):
        e.add_request(replace(request(name, [1, 2, 3], max_tokens=1), priority=priority))
    order = []
    while e.has_work():
        order += [out.request_id for out in e.step() if out.finish_reason]
    assert "".join(order) == "dbeafc"
