"""int8 and int4 weights: what is stored, how far it is from what was given, and how far products are from float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.kernels import Matrix, reference
from statemark.kernels.reference_quant import DEPTH, GROUP_BYTES, quantised_values, rounded_activations
from tests.kernels.inputs import F32, ISAS, bf16_bits, matrix, runtime, uniform

KINDS = ("int8", "int4")
EPS = 2.0**-24


def stored(values: F32, kind: str) -> F32:
    m = Matrix(*values.shape, kind)
    assert m.fill(0, values) == 0
    return m.to_float32()


def spread(rows: int, cols: int, seed: int) -> F32:
    """Sums of uniforms: near enough to the bell of real weights."""
    return sum((uniform(rows, cols, seed=seed + i) for i in range(4)), np.zeros((rows, cols), np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (33, 64), (40, 95), (70, 129), (5, 300)])
def test_the_compiled_rounding_is_the_reference_s_bit_for_bit(kind: str, rows: int, cols: int) -> None:
    for seed, scale in itertools.product((1, 2), (1.0, 2.0**-6, 64.0)):
        values = spread(rows, cols, seed) * np.float32(scale)
        assert np.array_equal(stored(values, kind), quantised_values(values, kind))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_filled_in_pieces_and_from_any_type_equal_rows_filled_at_once(kind: str) -> None:
    halves = spread(100, 130, 3).astype(np.float16)
    whole = stored(halves.astype(np.float32), kind)
    pieces = Matrix(100, 130, kind)
    for start in range(0, 100, 13):
        pieces.fill(start, halves[start : start + 13])
    assert np.array_equal(pieces.to_float32(), whole)
    words = bf16_bits(spread(64, 64, 4))
    narrow = Matrix(64, 64, kind)
    narrow.fill(0, words)
    assert np.array_equal(narrow.to_float32(), stored(reference.bf16_values(words), kind))


def steps_of(values: F32, kind: str) -> np.ndarray:
    """For each weight, the step between neighbours that its group could have at most."""
    depth, levels = DEPTH[kind], 254.0 if kind == "int8" else 15.0
    cols = -(-values.shape[1] // depth) * depth
    padded = np.zeros((len(values), cols))
    padded[:, : values.shape[1]] = values
    groups = padded.reshape(len(values), -1, depth)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    width = 2 * np.maximum(high, -low) if kind == "int8" else high - low
    return np.repeat(width / levels, depth, axis=1)[:, : values.shape[1]]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_every_weight_is_within_a_step_of_what_was_given(data: st.DataObject, kind: str) -> None:
    rows, cols = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 140))
    scale, shift = 2.0 ** data.draw(st.integers(-12, 4)), data.draw(st.sampled_from([0.0, 0.5, -1.0, 3.0]))
    values = (uniform(rows, cols, seed=data.draw(st.integers(0, 1000))) + np.float32(shift)) * np.float32(scale)
    error = np.abs(stored(values, kind).astype(np.float64) - values)
    # int8: half a step, and what its 8-bit scale cuts off at the ends. int4 may cut a sixth off both ends together.
    most = 0.5 + 254 / 2 * 2.0**-8 if kind == "int8" else 3.5
    assert (error <= most * steps_of(values, kind) + 1e-12).all()


def test_the_mean_error_is_what_the_bits_allow() -> None:
    values = np.random.default_rng(5).standard_normal((256, 1024)).astype(np.float32)
    error = {kind: float(np.sqrt(np.mean((stored(values, kind).astype(np.float64) - values) ** 2))) for kind in KINDS}
    # A step of int8 is about 2 * 2.7 / 254 for the largest of 64 normal values; of int4 about 4.2 / 15.
    assert error["int8"] < 0.0068
    assert error["int4"] < 0.0745


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_stay_zero_and_the_smallest_vanish(kind: str) -> None:
    values = np.zeros((3, 200), np.float32)
    values[1] = 2.0**-120
    values[2, 150:] = 1.0
    got = stored(values, kind)
    assert (got[0] == 0).all()
    assert (np.abs(got[1]) < 2.0**-24).all()
    assert (got[2, :128] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_is_counted_and_harms_no_other_row(kind: str) -> None:
    values = spread(5, 70, 6)
    clean = stored(values, kind)
    values[2, 3], values[2, 69], values[4, 0] = np.nan, np.inf, -np.inf
    m = Matrix(5, 70, kind)
    assert m.fill(0, values) == 3
    assert np.array_equal(m.to_float32()[[0, 1, 3]], clean[[0, 1, 3]])


@pytest.mark.parametrize("kind", KINDS)
def test_sizes(kind: str) -> None:
    for rows, cols in ((33, 7), (32, 64), (64, 65)):
        groups = -(-rows // 32) * -(-cols // DEPTH[kind])
        assert Matrix(rows, cols, kind).nbytes == groups * GROUP_BYTES[kind]
        assert reference.Matrix(rows, cols, kind).nbytes == groups * GROUP_BYTES[kind]  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 5, 60])
def test_the_error_stays_below_its_bound(isa: str, kind: str, count: int) -> None:
    """Against float64 on the activations as they were given: their rounding, and one chain over the groups."""
    x, m = uniform(count, 777, seed=10), matrix(50, 777, kind, seed=11)
    out = np.zeros((count, 50), np.float32)
    runtime(isa).linear(x, m, out)
    w, groups = m.to_float32().astype(np.float64), -(-777 // DEPTH[kind])
    padded = np.zeros((count, groups * DEPTH[kind]))
    padded[:, :777] = np.abs(x)
    top = np.repeat(padded.reshape(count, groups, -1).max(2), DEPTH[kind], axis=1)[:, :777]
    rounding = (0.5 / 32767 * (1 + 8 * EPS) * top) @ np.abs(w).T
    # each group's sum: conversion, two scales and their product; then the chain, of two roundings where nothing fuses
    chain = (2 * groups + 6) * EPS * ((np.abs(x).astype(np.float64) + top / 32767) @ np.abs(w).T)
    error = np.abs(out - x.astype(np.float64) @ w.T)
    assert (error <= rounding + chain).all()
    assert error.max() > 0  # or the bound is of another thing


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 2, 60])
def test_products_are_the_reference_s_but_for_the_order_of_sums(isa: str, kind: str, count: int) -> None:
    x, w = uniform(count, 300, seed=12, scale=8.0), spread(45, 300, 13)
    m, r = Matrix(45, 300, kind), reference.Matrix(45, 300, kind)  # type: ignore[arg-type]
    m.fill(0, w)
    r.fill(0, w)
    got, expected = np.zeros((count, 45), np.float32), np.zeros((count, 45), np.float32)
    runtime(isa).linear(x, m, got)
    reference.Runtime().linear(x, r, expected)
    bound = 40 * EPS * (np.abs(x) @ np.abs(r.to_float32()).T)
    assert (np.abs(got - expected) <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
def test_activations_are_rounded_to_a_32767th_of_the_largest_of_their_group(kind: str) -> None:
    x = uniform(4, 200, seed=14, scale=4.0)
    x[1, : DEPTH[kind]] = 0.0
    x[2, 5] = 2.0**-110
    rounded = rounded_activations(x, kind)  # type: ignore[arg-type]
    assert (np.abs(rounded - x) <= 4.0 / 65534 * 1.001).all()
    assert (rounded[1, : DEPTH[kind]] == 0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_rows_overflow_nothing(isa: str, kind: str) -> None:
    """The largest integers everywhere: a group's sum must fit 32 bits."""
    m = Matrix(2, 512, kind)
    m.fill(0, np.stack([np.full(512, 1.0, np.float32), np.full(512, -1.0, np.float32)]))
    for count in (1, 3, 50):
        out = np.zeros((count, 2), np.float32)
        runtime(isa).linear(np.full((count, 512), 3.0e38 / 1024, np.float32), m, out)
        np.testing.assert_allclose(out, np.tile([1.5e38, -1.5e38], (count, 1)), rtol=0.01)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", *KINDS])
def test_a_matrix_over_packed_bytes_is_the_matrix(isa: str, dtype: str) -> None:
    m, x = matrix(45, 130, dtype, seed=15), uniform(3, 130, seed=16)
    copy = np.array(m.packed)
    over = Matrix(45, 130, dtype, copy)
    assert np.shares_memory(over.packed, copy)
    assert (over.nbytes, over.dtype) == (m.nbytes, dtype)
    got, expected = np.zeros((3, 45), np.float32), np.zeros((3, 45), np.float32)
    runtime(isa).linear(x, over, got)
    runtime(isa).linear(x, m, expected)
    assert np.array_equal(got, expected)
    del copy  # the matrix keeps what it stands on
    assert np.array_equal(over.to_float32(), m.to_float32())


def test_packed_bytes_are_read_only_and_must_fit() -> None:
    m = matrix(45, 130, "int8", seed=17)
    with pytest.raises(ValueError, match="read-only"):
        m.packed[0] = 1
    over = Matrix(45, 130, "int8", m.packed)
    with pytest.raises(ValueError, match="can't be filled"):
        over.fill(0, uniform(45, 130, seed=17))
    with pytest.raises(ValueError, match=rf"has {m.nbytes} bytes, got {m.nbytes - 1}"):
        Matrix(45, 130, "int8", m.packed[:-1])
    with pytest.raises(ValueError, match="aligned"):
        Matrix(45, 130, "int8", np.zeros(m.nbytes + 1, np.uint8)[1:])
