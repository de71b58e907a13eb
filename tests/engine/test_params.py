"""Every field of SamplingParams: what is accepted, what is refused, and what the refusal says."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statemark.engine.params import SamplingParams, Structure
from statemark.errors import InvalidRequestError, StatemarkError

FIELDS = [f.name for f in dataclasses.fields(SamplingParams)]

ACCEPTED = [
    ("n", [1, 128, np.int32(3)]),
    ("temperature", [0, 0.0, 1, 100, np.float32(0.5)]),
    ("top_p", [1e-9, 1, 1.0]),
    ("top_k", [0, -1, 1, 10**9, np.int64(5)]),
    ("min_p", [0, 1, 0.5]),
    ("repetition_penalty", [0.01, 1, 10]),
    ("presence_penalty", [-2, 2, 0.5]),
    ("frequency_penalty", [-2, 2, 0.5]),
    ("logit_bias", [None, {}, {0: 100, 5: -100.0, np.int64(7): np.float32(0.5)}]),
    ("seed", [None, 0, -(2**63), 2**64 - 1]),
    ("max_tokens", [None, 1, 10**9]),
    ("min_tokens", [0, 16]),
    ("stop", [None, (), [], "a", ["a", "bc"], ("a",)]),
    ("stop_token_ids", [None, (), [0, 5], {3}, np.array([1, 2]), range(3)]),
    ("include_stop_str_in_output", [True]),
    ("ignore_eos", [True]),
    ("logprobs", [None, 0, 20]),
    ("prompt_logprobs", [None, 0, 20]),
    ("skip_special_tokens", [False]),
    ("detokenize", [False]),
    ("structure", [None, Structure("regex", "a+")]),
]

REFUSED = [
    ("n", [0, -1, 129, 1.0, "1", None, True]),
    ("temperature", [-0.1, 100.1, math.nan, math.inf, "1", None, True, 10**400]),
    ("top_p", [0, 0.0, 1.01, -1, math.nan, "1", None]),
    ("top_k", [-2, 1.5, "5", None, True]),
    ("min_p", [-0.1, 1.1, math.nan, None]),
    ("repetition_penalty", [0, -1, 10.1, math.inf, None]),
    ("presence_penalty", [-2.1, 2.1, math.nan, "0", None]),
    ("frequency_penalty", [-2.1, 2.1, math.nan, [1], None]),
    ("logit_bias", [{-1: 1.0}, {"1": 1.0}, {1: 101}, {1: math.nan}, {1: "x"}, {True: 1.0}, [1], 5]),
    ("seed", [-(2**63) - 1, 2**64, 1.5, "1", True]),
    ("max_tokens", [0, -5, 1.5, "5", True]),
    ("min_tokens", [-1, 17, 0.5, None, True]),
    ("stop", ["", ["a", ""], 5, [5], [b"a"], {"a": 1}, b"a"]),
    ("stop_token_ids", [[-1], ["1"], [1.0], [True], 5, "12"]),
    ("include_stop_str_in_output", [1, None, "true"]),
    ("ignore_eos", [0, None]),
    ("logprobs", [-1, 21, 1.0, True, "5"]),
    ("prompt_logprobs", [-1, 21, 1.0, True]),
    ("skip_special_tokens", [0, None]),
    ("detokenize", [1, None]),
    ("structure", ["a+", {"kind": "regex"}, Structure("nope", "a+")]),
]


def each(table):
    return [pytest.param(name, value, id=f"{name}={value!r:.30}") for name, values in table for value in values]


def test_both_tables_have_every_field() -> None:
    assert [name for name, _ in ACCEPTED] == FIELDS
    assert [name for name, _ in REFUSED] == FIELDS


@pytest.mark.parametrize(("name", "value"), each(ACCEPTED))
def test_accepted(name, value) -> None:
    params = SamplingParams(**{name: value})
    assert SamplingParams(**{field: getattr(params, field) for field in FIELDS}) == params


@pytest.mark.parametrize(("name", "value"), each(REFUSED))
def test_refused_with_the_name_and_the_value(name, value) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(f"{name} must be ")
    if value != 10**400:
        assert repr(value) in str(caught.value)


def test_defaults_are_those_that_vllm_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert params.stop == ()
    assert params.logprobs is None
    assert not params.greedy


def test_values_are_normalised() -> None:
    params = SamplingParams(
        stop="x", stop_token_ids=np.array([3]), top_k=-1, temperature=np.float32(0.5), seed=np.int64(2)
    )
    assert params.stop == ("x",)
    assert params.stop_token_ids == (3,)
    assert params.top_k == 0
    assert [type(v) for v in (params.stop_token_ids[0], params.temperature, params.seed)] == [int, float, int]


def test_the_callers_mapping_is_copied() -> None:
    bias = {1: 2}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 5
    assert params.logit_bias == {1: 2.0}


@pytest.mark.parametrize(("temperature", "greedy"), [(0, True), (1e-6, True), (1e-5, False), (0.01, False)])
def test_greedy(temperature, greedy) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy


def test_min_tokens_is_held_against_max_tokens() -> None:
    with pytest.raises(InvalidRequestError, match=r"min_tokens must be at most max_tokens \(4\), got 5"):
        SamplingParams(min_tokens=5, max_tokens=4)
    assert SamplingParams(min_tokens=500, max_tokens=None).min_tokens == 500


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize is false") as caught:
        SamplingParams(stop="x", detokenize=False)
    assert "stop_token_ids" in caught.value.hint


def test_from_fields_names_unknown_fields_and_lists_the_known_ones() -> None:
    assert SamplingParams.from_fields({"top_k": 3}) == SamplingParams(top_k=3)
    with pytest.raises(InvalidRequestError, match="unknown sampling fields: beam_width, topk") as caught:
        SamplingParams.from_fields({"topk": 3, "beam_width": 2, "n": 1})
    assert caught.value.param == "beam_width"
    assert all(name in caught.value.hint for name in FIELDS)


def test_unknown_keywords_are_errors() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_whatever_json_says_the_answer_is_params_or_our_error(values) -> None:
    with contextlib.suppress(StatemarkError):
        assert SamplingParams.from_fields(values).n >= 1
