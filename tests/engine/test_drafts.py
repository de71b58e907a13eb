"""Drafts: what is guessed, how often, and that a guess changes how many tokens a step gives and nothing else."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.engine.drafts import DraftPace, look_up
from statemark.engine.sequence import Sequence
from statemark.errors import ConfigurationError, IntegrityError
from tests.engine import harness
from tests.engine.schedules import Guesses
from tests.toy import ToyExecutor

PROMPT = tuple(range(1, 20))


def guess(tokens, most=4):
    return look_up(np.array(tokens, dtype=np.int32), most).tolist()


def test_what_followed_the_longest_match_is_guessed_and_among_equals_the_latest():
    assert guess([1, 2, 3, 4, 5, 6, 7, 9, 9, 1, 2, 3]) == [4, 5, 6, 7]
    assert guess([1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 0, 1, 2, 3], 1) == [5]
    assert guess([8, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0, 8, 1, 2, 3], 1) == [4]


def test_two_equal_tokens_are_no_reason_to_guess():
    assert guess([1, 2, 7, 7, 1, 2]) == []
    assert guess([1, 2, 3]) == guess([5]) == []


def test_what_is_being_repeated_goes_on():
    assert guess([7, 7, 7, 7]) == [7, 7, 7, 7]
    assert guess([1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 6))
def test_a_guess_follows_an_earlier_copy_of_the_last_three_tokens(tokens, most):
    found = guess(tokens, most)
    assert len(found) in (0, most)
    earlier = [i for i in range(3, len(tokens)) if tokens[i - 3 : i] == tokens[-3:]]
    assert bool(found) == bool(earlier and most)
    if found:
        assert found[0] in {tokens[i] for i in earlier}


def test_drafts_get_longer_with_success_and_rest_after_failures():
    pace = DraftPace(8)
    assert pace.wanted() == 2
    pace.learn(2, 2)
    assert pace.wanted() == 4
    pace.learn(4, 4)
    pace.learn(8, 8)
    assert pace.wanted() == 8
    pace.learn(8, 3)
    assert pace.wanted() == 3
    pauses = []
    for _ in range(8):
        while (wanted := pace.wanted()) == 0:
            pauses[-1] += 1
        assert wanted >= 1
        pace.learn(wanted, 0)
        pauses.append(0)
    assert pauses == [0, 4, 8, 16, 32, 32, 32, 0]


def drafting(tokens, most=4, **options):
    """An engine whose guesses are mostly the tokens that this request really gets."""
    e = harness.engine(num_speculative_tokens=most, **options)
    e.scheduler.guess = Guesses({PROMPT: tokens})
    return e


def test_the_same_answer_in_fewer_steps():
    request = harness.request("r", PROMPT, max_tokens=40)
    right = harness.cold(request)
    e = drafting(right.tokens)
    got = harness.one(e, request)
    assert (got.tokens, got.digest(), got.finish) == (right.tokens, right.digest(), "length")
    stats = e.stats()
    assert 0 < stats["draft_tokens_accepted"] < stats["draft_tokens"], "some guesses are right and some wrong"
    assert stats["steps"] == 40 - stats["draft_tokens_accepted"]
    assert e.executor.largest_step <= 512


@settings(max_examples=60, deadline=None)
@given(most=st.integers(1, 16), end=st.integers(1, 24), stop=st.one_of(st.none(), st.integers(0, 23)))
def test_an_answer_ends_where_it_would_have_ended(most, end, stop):
    whole = harness.cold(harness.request("r", PROMPT, max_tokens=24)).tokens
    options = {"max_tokens": end, "stop_token_ids": [] if stop is None else [whole[stop]]}
    request = harness.request("r", PROMPT, **options)
    right = harness.cold(request)
    e = drafting(whole, most)
    got = harness.one(e, request)
    assert (got.tokens, got.digest(), got.finish) == (right.tokens, right.digest(), right.finish)
    again = harness.one(e, harness.request("again", (*PROMPT, *got.tokens, 3), max_tokens=3))
    assert again.digest() == harness.cold(harness.request("again", (*PROMPT, *got.tokens, 3), max_tokens=3)).digest()
    assert again.cached >= len(PROMPT), "what the answer left is used"


def test_an_answer_whose_drafts_were_right_leaves_a_mark_at_its_end():
    whole = harness.cold(harness.request("r", PROMPT, max_tokens=4)).tokens
    e = harness.engine(num_speculative_tokens=2)
    e.scheduler.guess = lambda tokens, most: np.array(whole[len(tokens) - len(PROMPT) :][:most], dtype=np.int32)
    harness.one(e, harness.request("r", PROMPT, max_tokens=4))
    assert e.stats()["draft_tokens_accepted"] == e.stats()["draft_tokens"] == 2
    again = harness.one(e, harness.request("again", (*PROMPT, *whole, 3)))
    assert again.cached == len(PROMPT) + 3


def test_prompt_lookup_finds_what_repeats_by_itself():
    class Periodic(ToyExecutor):
        """Logits of a text that goes round in a circle of five tokens."""

        def run(self, plan):
            super().run(plan)
            self.newest = [int(t) for c in plan.chunks for t in c.tokens]

        def logits(self, rows):
            out = np.zeros((len(rows), self.vocab_size), dtype=np.float32)
            for i, row in enumerate(rows):
                out[i, (self.newest[row] + 1) % 5] = 9.0
            return out

    e = harness.engine(Periodic(), num_speculative_tokens=4)
    got = harness.one(e, harness.request("r", (0, 1, 2, 3, 4) * 2, max_tokens=41))
    assert got.tokens == [i % 5 for i in range(41)]
    assert e.stats()["draft_tokens_accepted"] == e.stats()["draft_tokens"]
    assert e.steps < 15


def test_who_waits_comes_before_drafts():
    tokens = harness.cold(harness.request("r", PROMPT, max_tokens=30)).tokens
    slot, page = 256, 64
    e = drafting(tokens, cache_bytes=2 * slot + 12 * page, max_model_len=64)
    e.add_request(harness.request("r", PROMPT, max_tokens=30))
    seen = {}
    while not e.stats()["draft_tokens"]:
        harness.step(e, seen)
    assert e.scheduler.running[0].lease.spare is not None
    e.add_request(harness.request("other", (40, 41), max_tokens=2))
    harness.step(e, seen)
    assert len(e.scheduler.running) == 2, "the slot for drafts was given to the one who waited"
    harness.drain(e, seen)
    assert seen[("r", 0)].tokens == tokens


def test_without_room_for_a_second_state_nothing_is_drafted():
    tokens = harness.cold(harness.request("r", PROMPT, max_tokens=20)).tokens
    e = drafting(tokens, cache_bytes=256 + 4 * 64, max_model_len=48)
    assert harness.one(e, harness.request("r", PROMPT, max_tokens=20)).tokens == tokens
    assert e.stats()["draft_tokens"] == 0


def test_a_failed_step_with_drafts_loses_nothing():
    tokens = harness.cold(harness.request("r", PROMPT, max_tokens=20)).tokens

    class FailsOnce(ToyExecutor):
        failed = False

        def run(self, plan):
            if not self.failed and any(c.drafts for c in plan.chunks) and len(plan.chunks) > 1:
                self.failed = True
                raise RuntimeError("a planted failure")
            super().run(plan)

    e = harness.engine(FailsOnce(), num_speculative_tokens=4)
    e.scheduler.guess = Guesses({PROMPT: tokens})
    e.add_request(harness.request("r", PROMPT, max_tokens=20))
    e.add_request(harness.request("other", (40, 41), max_tokens=20))
    seen = harness.drain(e)
    assert e.executor.failed
    assert seen[("r", 0)].tokens == tokens
    assert seen[("other", 0)].tokens == harness.cold(harness.request("other", (40, 41), max_tokens=20)).tokens


def keeps_what_was_wrong(self, chunk):
    """`Sequence.settle` as if every draft had been right: the state has consumed tokens that are not there."""
    self.computed = chunk.known
    self._newest = self.length - self.computed


@pytest.mark.parametrize("checked", [True, False])
def test_a_state_that_consumed_wrong_drafts_is_noticed(monkeypatch, checked):
    request = harness.request("r", PROMPT, max_tokens=30)
    right = harness.cold(request)
    monkeypatch.setattr(Sequence, "settle", keeps_what_was_wrong)
    executor = ToyExecutor()
    executor.check_stamps = checked
    e = harness.engine(executor, num_speculative_tokens=4)
    e.scheduler.guess = Guesses({PROMPT: right.tokens})
    got = harness.one(e, request)
    if checked:
        assert got.finish == "error", "the stamp says what the state has consumed"
        assert "does not hold the state" in got.error
    else:
        assert got.digest() != right.digest(), "and the answer would have been another"


@pytest.mark.parametrize("most", [-1, 17])
def test_how_many_may_be_drafted(most):
    with pytest.raises(ConfigurationError, match=rf"num_speculative_tokens must be from 0 to 16, got {most}"):
        harness.engine(num_speculative_tokens=most)


def test_integrity_knows_the_second_slot():
    tokens = harness.cold(harness.request("r", PROMPT, max_tokens=20)).tokens
    e = drafting(tokens)
    e.add_request(harness.request("r", PROMPT, max_tokens=20))
    while not e.stats()["draft_tokens"]:
        e.step()
    lease = e.scheduler.running[0].lease
    lease.spare, kept = None, lease.spare
    with pytest.raises(IntegrityError):
        e.check_integrity()
    lease.spare = kept
    e.check_integrity()
