"""Sampling against a slow full-vocabulary definition, and its independence of everything but the row and the choice."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statemark.engine import sampler as module
from statemark.engine.params import SamplingParams
from statemark.engine.sampler import SampledToken, Sampler, SamplerState, uniform
from statemark.kernels.reference import Runtime

SAMPLER = Sampler(Runtime())


def state(params: SamplingParams, prompt=(0, 1, 2), **more) -> SamplerState:
    return SamplerState(params=params, seed=params.seed or 0, prompt_token_ids=prompt, **more)


def logits_of(vocab: int, seed: int, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def one(row: np.ndarray, choice: SamplerState) -> SampledToken:
    return SAMPLER.sample(row[None], [choice])[0]


def draw(row: np.ndarray, params: SamplingParams, position: int = 3, **more) -> int:
    answer = one(row, state(params, prompt=[0] * position, **more))
    assert answer.error is None
    return answer.token_id


def kept_shares(row: np.ndarray, p: SamplingParams) -> dict[int, float]:
    """What may be drawn, with its probability, in falling order: min-p, top-k, top-p, each on the rest renormalised."""
    wide = row.astype(np.float64) / p.temperature
    weights = np.exp(wide - wide.max())
    order = sorted(range(len(row)), key=lambda t: (-weights[t], t))
    if p.min_p:
        order = [t for t in order if weights[t] >= p.min_p * weights[order[0]]]
    if p.top_k:
        order = order[: p.top_k]
    total = sum(weights[t] for t in order)
    if p.top_p < 1.0:
        kept, mass = [], 0.0
        for token in order:
            if mass >= p.top_p * total:
                break
            kept.append(token)
            mass += weights[token]
        order = kept
    total = sum(weights[t] for t in order)
    return {t: weights[t] / total for t in order}


# --- the random number ------------------------------------------------------------------------------------------


def test_the_random_numbers_are_pinned() -> None:
    # Stored answers stay repeatable only as long as these do.
    assert uniform(0, 0, 0) == 0.156742553465558
    assert uniform(1, 0, 0) == uniform(1 - 2**64, 0, 0)
    assert len({uniform(s, p, i) for s in range(5) for p in range(5) for i in range(5)}) == 125


def test_the_random_numbers_are_uniform() -> None:
    values = np.array([uniform(7, position, 0) for position in range(20_000)])
    assert values.min() >= 0.0
    assert values.max() < 1.0
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # 19 degrees of freedom: 50 is beyond one in ten thousand
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.03


# --- which token ------------------------------------------------------------------------------------------------


def test_greedy_takes_the_largest_and_the_lowest_id_of_equals() -> None:
    row = np.array([0, 3, 1, 3, -5], np.float32)
    assert draw(row, SamplingParams(temperature=0)) == 1
    assert draw(row, SamplingParams(temperature=1e-6)) == 1


filters = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.05, 0.5, 1.0, 1.7, 20.0]),
        "top_k": st.sampled_from([1, 2, 40, 127, 128, 129, 1000, 1024, 1500, 10**9]),
        # No multiples of 1 / vocab: among equals, rounding alone would decide where such a share ends.
        "top_p": st.sampled_from([1e-6, 0.3217, 0.9031, 0.99913, 1.0]),
        "min_p": st.sampled_from([1e-5, 0.05, 0.5, 1.0]),
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    wanted=filters,
    vocab=st.sampled_from([2, 7, 128, 129, 700, 2000]),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    position=st.integers(1, 10**6),
)
def test_a_draw_is_the_inverse_cdf_over_what_the_filters_keep(wanted, vocab, seed, spread, position) -> None:
    row = np.round(logits_of(vocab, seed, spread) * 4) / np.float32(4)  # coarse, so that there are ties
    params = SamplingParams(**wanted, seed=seed)
    choice = SamplerState(params=params, seed=seed, prompt_token_ids=range(position))
    token = one(row, choice).token_id
    shares = kept_shares(row / np.float32(params.temperature), replace(params, temperature=1.0))
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        first = list(shares)[: module.FIRST_CANDIDATES]  # then the rest by id
        shares = {t: shares[t] for t in [*first, *sorted(set(shares) - set(first))]}
    assert token in shares
    below = math.fsum(shares[t] for t in takewhile(lambda t: t != token, shares))
    u = uniform(seed, position, 0)
    assert below - 1e-5 <= u <= below + shares[token] + 1e-5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=1, temperature=2.5),
        SamplingParams(seed=1, top_k=5),
        SamplingParams(seed=1, top_p=0.8),
        SamplingParams(seed=1, min_p=0.1),
        SamplingParams(seed=1, min_p=0.02, top_k=50, top_p=0.9, temperature=1.5),
    ],
    ids=["plain", "hot", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies_follow_the_distribution(params) -> None:
    row = logits_of(300, 5, 1.5)
    draws = 6000
    rows = np.repeat(row[None], draws, axis=0)
    states = [SamplerState(params=params, seed=1, prompt_token_ids=range(p)) for p in range(1, draws + 1)]
    counts = Counter(answer.token_id for answer in SAMPLER.sample(rows, states))
    shares = kept_shares(row, params)
    assert set(counts) <= set(shares)
    common = {t: share for t, share in shares.items() if share * draws >= 5}
    chi2 = sum((counts[t] - share * draws) ** 2 / (share * draws) for t, share in common.items())
    freedom = len(common)
    assert chi2 < freedom + 4.5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("wanted", [{"top_p": 0.97}, {"min_p": 0.01}, {"top_k": 1025}, {"top_k": 1100, "top_p": 0.9}])
def test_a_full_sort_and_the_first_candidates_agree(wanted, monkeypatch) -> None:
    rows = [logits_of(3000, seed, spread) for seed, spread in enumerate([0.2, 2.0, 3.0, 4.0, 8.0] * 8)]
    params = SamplingParams(seed=3, **wanted)
    short = [draw(row, params) for row in rows]
    monkeypatch.setattr(module, "FIRST_CANDIDATES", 3000)
    assert [draw(row, params) for row in rows] == short


def test_tail_tokens_are_reached_and_the_order_behind_the_first_is_by_id() -> None:
    row = np.zeros(5000, np.float32)
    tokens = {draw(row, SamplingParams(seed=1), position=p) for p in range(1, 200)}
    assert max(tokens) > 4000
    assert len(tokens) > 180


@pytest.mark.parametrize("second", [-0.1, -1.0, -3.3, -9.9])
def test_no_tail_token_is_drawn_because_sums_were_rounded(second, monkeypatch) -> None:
    """The mass of all comes as a float32 logarithm; a u close to 1 must not fall behind all that has weight."""
    row = np.full(4000, -60, np.float32)
    row[[7, 8]] = [0.0, second]
    monkeypatch.setattr(module, "uniform", lambda seed, position, index: 1.0 - 2.0**-53)
    assert draw(row, SamplingParams(seed=1)) == 8


def test_negative_zero_and_zero_are_equal() -> None:
    row = np.array([-0.0, 0.0] * 1000, np.float32)
    assert module._in_order(row).tolist() == list(range(2000))


# --- histories: bans, bias, penalties ---------------------------------------------------------------------------


def slow_shape(row, params, prompt, written, ends):
    row = row.copy()
    if len(written) < params.min_tokens:
        row[sorted(ends)] = -np.inf
    for token, bias in (params.logit_bias or {}).items():
        row[token] += np.float32(bias)
    for token in {*prompt, *written}:
        penalty = np.float32(params.repetition_penalty)
        row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
    for token, count in Counter(written).items():
        row[token] -= np.float32(params.frequency_penalty) * np.float32(count)
        row[token] -= np.float32(params.presence_penalty)
    return row


tokens = st.lists(st.integers(0, 29), max_size=60)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompt=tokens,
    written=tokens,
    values=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.5, 1.1, 2.0]),
            "presence_penalty": st.sampled_from([-1.5, 0.3, 2.0]),
            "frequency_penalty": st.sampled_from([-0.5, 0.1, 2.0]),
            "logit_bias": st.dictionaries(st.integers(0, 29), st.sampled_from([-100.0, -1.5, 2.0]), max_size=4),
            "min_tokens": st.integers(0, 70),
            "stop_token_ids": st.lists(st.integers(0, 29), max_size=3),
        },
    ),
    split=st.integers(0, 60),
)
def test_shaping_follows_the_definition_and_counts_grow_right(prompt, written, values, split) -> None:
    params = SamplingParams(**values, max_tokens=None)
    eos = {4}
    split = min(split, len(written))
    choice = state(params, prompt=prompt, eos_token_ids=eos, generated=written[:split])
    for token in written[split:]:
        choice.add(token)
    row = logits_of(30, 1)
    expected = slow_shape(row, params, prompt, written, eos | set(params.stop_token_ids))
    got = row.copy()
    choice.shape(got)
    assert np.array_equal(got, expected)
    assert choice.position == len(prompt) + len(written)
    if choice.plain:
        assert np.array_equal(got, row)


def test_sampling_moves_the_state_on() -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1.0)
    row = np.array([2.0, 1.5, 0.0], np.float32)
    choice = state(params)
    assert [one(row, choice).token_id for _ in range(4)] == [0, 1, 0, 1]
    assert choice.position == 7


def test_min_tokens_bans_every_end_until_it_is_reached() -> None:
    row = np.array([5, 4, 3, 2], np.float32)
    choice = state(SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[1]), eos_token_ids=[0])
    assert [one(row, choice).token_id for _ in range(3)] == [2, 2, 0]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the reference kernel's, on a row of -inf
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_tokens_banned_is_an_error_and_not_a_token(temperature) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=1, stop_token_ids=range(4))
    choice = state(params)
    answer = one(np.zeros(4, np.float32), choice)
    assert answer.token_id == -1
    assert "no token is left" in (answer.error or "")
    assert choice.position == 3


# --- log-probabilities ------------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_logits() -> None:
    row = logits_of(50, 2)
    raw = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    params = SamplingParams(
        temperature=0.3, seed=4, logit_bias={3: 50.0}, repetition_penalty=2.0, presence_penalty=1.0, logprobs=5
    )
    answer = one(row, state(params))
    assert answer.token_id == 3
    details = answer.logprobs
    assert details is not None
    assert details.logprob == np.float32(raw[3])
    assert details.rank == 1 + int((raw > raw[3]).sum())
    assert list(details.top_ids) == np.argsort(-raw, kind="stable")[:5].tolist()
    assert list(details.top_logprobs) == raw[list(details.top_ids)].astype(np.float32).tolist()


def test_each_row_gets_the_number_of_logprobs_that_it_asked_for() -> None:
    rows = np.stack([logits_of(40, seed) for seed in range(4)])
    asked = [None, 0, 3, 20]
    states = [state(SamplingParams(temperature=0, logprobs=count)) for count in asked]
    answers = SAMPLER.sample(rows, states)
    assert [None if a.logprobs is None else len(a.logprobs.top_ids) for a in answers] == asked
    assert answers[1].logprobs is not None
    assert answers[1].logprobs.rank == 1


def test_prompt_logprobs_are_of_the_following_tokens() -> None:
    rows = np.stack([logits_of(40, seed) for seed in range(3)])
    details = SAMPLER.prompt_logprobs(rows, np.array([4, 5, 6], np.int32), 2)
    assert [d.token_id for d in details] == [4, 5, 6]
    assert all(len(d.top_ids) == 2 for d in details)
    raw = rows.astype(np.float64) - np.log(np.exp(rows.astype(np.float64)).sum(axis=1, keepdims=True))
    assert [d.logprob for d in details] == raw[[0, 1, 2], [4, 5, 6]].astype(np.float32).tolist()
    assert SAMPLER.prompt_logprobs(rows[:0], [], 2) == []


def test_more_logprobs_than_tokens_gives_all_tokens() -> None:
    answer = one(logits_of(5, 1), state(SamplingParams(logprobs=20, seed=1)))
    assert answer.logprobs is not None
    assert sorted(answer.logprobs.top_ids) == list(range(5))


# --- independence -----------------------------------------------------------------------------------------------

any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 3, 200, 1024, 1200]),
    top_p=st.sampled_from([0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.01]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.sampled_from([None, {5: 3.0}]),
    logprobs=st.sampled_from([None, 0, 20]),
    seed=st.integers(0, 5),
    min_tokens=st.sampled_from([0, 2]),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), everyone=st.lists(any_params, min_size=1, max_size=6))
def test_batch_mates_and_row_order_change_nothing(data, everyone) -> None:
    vocab = 1500

    def fresh(i: int) -> SamplerState:
        return state(everyone[i], prompt=[i, 7], eos_token_ids=[3], choice_index=i % 2)

    rows = np.stack([logits_of(vocab, i, 0.5 + i) for i in range(len(everyone))])
    alone = [one(rows[i], fresh(i)) for i in range(len(everyone))]
    order = data.draw(st.permutations(range(len(everyone))))
    before = rows[order].copy()
    together = SAMPLER.sample(before, [fresh(i) for i in order])
    assert [together[order.index(i)] for i in range(len(everyone))] == alone
    assert np.array_equal(before, rows[order]), "the caller's logits were changed"


def test_planted_fault_a_mate_that_widens_the_candidates_would_be_seen(monkeypatch) -> None:
    """A flat row that is drawn beyond the first candidates depends on how many there were: mates must not set that."""
    row = logits_of(3000, 1, 0.1)
    mate = SamplingParams(top_k=1024, seed=2)
    params = SamplingParams(seed=1)

    def run(with_mate: bool) -> list[int]:
        found = []
        for position in range(1, 30):
            states = [SamplerState(params=params, seed=1, prompt_token_ids=range(position))]
            if with_mate:
                states.append(state(mate))
            found.append(SAMPLER.sample(np.repeat(row[None], len(states), axis=0), states)[0].token_id)
        return found

    assert run(True) == run(False)
    alone = run(False)
    monkeypatch.setattr(module, "_first_candidates", lambda top_k, vocab: 1024)
    assert run(True) != alone


def test_choices_of_one_seed_differ_by_their_index() -> None:
    row = logits_of(500, 3)
    params = SamplingParams(n=8, seed=11)
    tokens = [draw(row, params, choice_index=i) for i in range(8)]
    assert len(set(tokens)) > 3
    assert tokens == [draw(row, params, choice_index=i) for i in range(8)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_end_their_request_only(bad, temperature) -> None:
    rows = np.stack([logits_of(600, seed) for seed in range(3)])
    params = SamplingParams(temperature=temperature, seed=1, logprobs=2)
    alone = [one(rows[i], state(params)) for i in (0, 2)]
    rows[1, 599] = bad
    states = [state(params) for _ in range(3)]
    answers = SAMPLER.sample(rows, states)
    assert [answers[0], answers[2]] == alone
    assert answers[1].token_id == -1
    assert "1 of 600 entries" in (answers[1].error or "")
    assert [s.position for s in states] == [4, 3, 4]


def test_tokens_that_the_model_rules_out_are_never_drawn() -> None:
    row = np.full(2000, -np.inf, np.float32)
    row[[5, 900]] = [1.0, 1.0]
    found = {draw(row, SamplingParams(seed=s, top_p=p), position=s + 1) for s in range(20) for p in (0.99, 1.0)}
    assert found == {5, 900}


def test_no_rows_no_tokens() -> None:
    assert SAMPLER.sample(np.empty((0, 10), np.float32), []) == []
