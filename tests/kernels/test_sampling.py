"""Log-probabilities, ranks and greedy choice: ties, infinities and NaN as documented, the same on every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.inputs import ISAS, i32, runtime, uniform

INF = np.float32(np.inf)


def expected(logits: np.ndarray, n: int, targets: np.ndarray) -> tuple[np.ndarray, ...]:
    wide = np.where(np.isnan(logits), -np.inf, logits).astype(np.float64)
    peak = wide.max(axis=1, keepdims=True)
    logprobs = wide - (peak + np.log(np.exp(wide - peak).sum(axis=1, keepdims=True)))
    top = np.argsort(-wide, axis=1, kind="stable")[:, :n]
    rows = np.arange(len(wide))
    chosen = wide[rows, targets][:, None]
    better = (wide > chosen) | ((wide == chosen) & (np.arange(wide.shape[1]) < targets[:, None]))
    return top, np.take_along_axis(logprobs, top, axis=1), logprobs[rows, targets], 1 + better.sum(axis=1)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("vocab", [1, 3, 20, 64, 65, 1001, 5000])
def test_top_logprobs_agree_with_float64(isa: str, vocab: int) -> None:
    logits = uniform(6, vocab, seed=1, scale=16.0)
    targets = (np.arange(6, dtype=np.int32) * 7919) % vocab
    n = min(20, vocab)
    ids, values, chosen, ranks = runtime(isa, 2).top_logprobs(logits, n, targets.astype(np.int32))
    want = expected(logits, n, targets)
    assert np.array_equal(ids, want[0])
    assert np.array_equal(ranks, want[3])
    # exp errs by 2 ulp in each term of the sum; the rest is float64 and one rounding
    for got, exact in ((values, want[1]), (chosen, want[2])):
        assert (np.abs(got - exact) <= 2.0**-22 + 2.0**-23 * np.abs(exact)).all()
    assert np.array_equal(runtime(isa, 2).argmax(logits), want[0][:, 0])


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_alone_and_among_others(isa: str) -> None:
    logits, targets = uniform(9, 333, seed=2, scale=4.0), np.arange(9, dtype=np.int32)
    together = runtime(isa, 2).top_logprobs(logits, 5, targets)
    for r in range(9):
        alone = runtime(isa).top_logprobs(logits[r : r + 1], 5, targets[r : r + 1])
        assert all(np.array_equal(a[0], t[r]) for a, t in zip(alone, together, strict=True))


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_lower_id(isa: str) -> None:
    logits = np.zeros((1, 100), np.float32)
    logits[0, [90, 17, 40]] = 3.0
    ids, values, chosen, ranks = runtime(isa).top_logprobs(logits, 5, i32(40))
    assert ids[0].tolist() == [17, 40, 90, 0, 1]
    assert values[0, 0] == values[0, 2] == chosen[0]
    assert ranks[0] == 2
    assert runtime(isa).argmax(logits)[0] == 17


@pytest.mark.parametrize("isa", ISAS)
def test_minus_infinity_has_no_probability_and_nan_counts_as_it(isa: str) -> None:
    logits = np.full((1, 40), -INF, np.float32)
    logits[0, [3, 9]] = [1.0, np.nan]
    ids, values, chosen, ranks = runtime(isa).top_logprobs(logits, 3, i32(9))
    assert ids[0].tolist() == [3, 0, 1]
    assert values[0].tolist() == [0.0, -np.inf, -np.inf]
    assert chosen[0] == -np.inf
    assert ranks[0] == 10  # behind id 3 and the eight lower ids that tie with it
    assert runtime(isa).argmax(logits)[0] == 3


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("value", "ids"), [(INF, [4, 30]), (-INF, list(range(33)))])
def test_where_the_peak_is_infinite_its_ids_share_the_probability(isa: str, value: np.float32, ids: list[int]) -> None:
    logits = np.zeros((1, 33), np.float32)
    logits[0, ids] = value
    top, values, chosen, ranks = runtime(isa).top_logprobs(logits, 2, i32(ids[1]))
    assert top[0].tolist() == ids[:2]
    assert np.allclose([*values[0], chosen[0]], -np.log(len(ids)))
    assert ranks[0] == 2
    assert runtime(isa).argmax(logits)[0] == ids[0]


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_of_nan_is_a_row_of_equals(isa: str) -> None:
    logits = np.full((1, 20), np.nan, np.float32)
    assert runtime(isa).argmax(logits)[0] == 0
    ids, values, _, ranks = runtime(isa).top_logprobs(logits, 2, i32(5))
    assert ids[0].tolist() == [0, 1]
    assert np.allclose(values, -np.log(20))
    assert ranks[0] == 6


def test_no_top_ids_and_out_of_range_arguments() -> None:
    rt, logits = runtime(ISAS[0]), uniform(2, 10, seed=3)
    ids, values, chosen, _ = rt.top_logprobs(logits, 0, i32(1, 2))
    assert ids.shape == values.shape == (2, 0)
    assert np.isfinite(chosen).all()
    with pytest.raises(ValueError, match="n must be 0 to 10, got 11"):
        rt.top_logprobs(logits, 11, i32(1, 2))
    with pytest.raises(ValueError, match=r"target 10 of row 1 is not in \[0, 10\)"):
        rt.top_logprobs(logits, 3, i32(1, 10))
    with pytest.raises(ValueError, match="targets must have 2 elements, has 1"):
        rt.top_logprobs(logits, 3, i32(1))
