"""rms_norm, swiglu and rope tables: rows on their own, tails like bodies, errors of a few ulp."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels import float64
from tests.kernels.inputs import ISAS, runtime, uniform


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [1, 2, 7, 8, 9, 16, 31, 64, 65, 1024])
def test_rms_norm_is_within_two_ulp_of_float64(isa: str, cols: int) -> None:
    x, weight = uniform(5, cols, seed=1, scale=8.0), uniform(cols, seed=2) + np.float32(2.0)
    out = np.zeros_like(x)
    runtime(isa).rms_norm(x, weight, 1e-6, out)
    expected = float64.rms_norm(x.astype(np.float64), weight.astype(np.float64), 1e-6)
    # two products and a reciprocal root round, and the mean of squares has a relative error of a few ulp
    assert (np.abs(out - expected) <= 2.0**-24 * (6 + cols / 8) * np.abs(expected)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm_may_work_in_place_and_rows_are_independent(isa: str) -> None:
    x, weight = uniform(300, 100, seed=3), uniform(100, seed=4)
    out, alone = np.zeros_like(x), np.zeros_like(x)
    runtime(isa, 2).rms_norm(x, weight, 1e-5, out)
    for i in range(300):
        runtime(isa).rms_norm(x[i : i + 1], weight, 1e-5, alone[i : i + 1])
    assert np.array_equal(out, alone)
    runtime(isa).rms_norm(x, weight, 1e-5, x)
    assert np.array_equal(out, x)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cols", [1, 7, 16, 33, 200])
def test_swiglu_is_within_four_ulp_of_float64(isa: str, cols: int) -> None:
    x = uniform(4, 2 * cols, seed=5, scale=16.0)
    out = np.zeros((4, cols), np.float32)
    runtime(isa, 2).swiglu(x, out)
    gate, up = np.split(x.astype(np.float64), 2, axis=1)
    expected = float64.silu(gate) * up
    assert (np.abs(out - expected) <= 4 * 2.0**-23 * np.abs(expected)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_value_is_the_same_in_body_and_tail(isa: str) -> None:
    values = uniform(1, 61, seed=6, scale=32.0)
    whole = np.zeros((1, 61), np.float32)
    runtime(isa).swiglu(np.concatenate([values, np.ones_like(values)], axis=1), whole)
    for i in range(61):
        one = np.zeros((1, 1), np.float32)
        runtime(isa).swiglu(np.array([[values[0, i], 1.0]], np.float32), one)
        assert one[0, 0] == whole[0, i], i


@pytest.mark.parametrize("isa", ISAS)
def test_silu_at_its_ends(isa: str) -> None:
    gate = np.array([-1000.0, -104.0, -87.0, -1e-30, 0.0, 1e-30, 88.0, 1000.0, np.inf, np.nan], np.float32)
    out = np.zeros((1, 10), np.float32)
    runtime(isa).swiglu(np.concatenate([gate, np.ones(10, np.float32)])[None], out)
    assert out[0, 0] == 0.0
    assert out[0, 1] == 0.0  # the sigmoid is below the smallest normal number, which counts as zero
    assert np.isclose(out[0, 2], -87.0 * np.exp(-87.0), rtol=1e-6, atol=0.0)
    assert np.array_equal(out[0, 3:6], np.array([-5e-31, 0.0, 5e-31], np.float32))
    assert np.array_equal(out[0, 6:9], np.array([88.0, 1000.0, np.inf], np.float32))
    assert np.isnan(out[0, 9])


def test_rope_angles_are_rounded_and_their_sines_are_not_approximated() -> None:
    positions = np.array([0, 1, 63, 4096, 262_143], np.int32)
    inv_freq = (1e6 ** (-np.arange(16) / 16)).astype(np.float32)
    cos, sin = runtime(ISAS[0]).rope_tables(positions, inv_freq)
    angle = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    assert np.array_equal(cos, np.cos(angle).astype(np.float32))
    assert np.array_equal(sin, np.sin(angle).astype(np.float32))


def test_wrong_shapes_are_refused() -> None:
    rt, x = runtime(ISAS[0]), uniform(2, 8, seed=7)
    with pytest.raises(ValueError, match="weight must have 8 elements, has 7"):
        rt.rms_norm(x, np.ones(7, np.float32), 1e-6, x)
    with pytest.raises(ValueError, match="out must be 2 x 8, is 2 x 4"):
        rt.rms_norm(x, np.ones(8, np.float32), 1e-6, x[:, :4])
    with pytest.raises(ValueError, match="half of 8"):
        rt.swiglu(x, np.zeros((2, 5), np.float32))
