"""Packed weights: every value that goes in comes out as the dtype rounds it, from every source type."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from statemark.kernels import Matrix
from tests.kernels.inputs import ISAS, bf16_bits, bf16_values, matrix, runtime, uniform


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (31, 7), (32, 128), (70, 129), (100, 257)])
def test_rows_filled_in_pieces_equal_rows_filled_at_once(dtype: str, rows: int, cols: int) -> None:
    values, whole, pieces = uniform(rows, cols, seed=1), Matrix(rows, cols, dtype), Matrix(rows, cols, dtype)
    whole.fill(0, values)
    for start in range(0, rows, 13):
        pieces.fill(start, values[start : start + 13])
    expected = bf16_values(bf16_bits(values)) if dtype == "bfloat16" else values
    assert np.array_equal(whole.to_float32(), expected)
    assert np.array_equal(pieces.to_float32(), expected)


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan() -> None:
    words = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x80000000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0xFFFFFFFF],
        dtype=np.uint32,
    )
    m = Matrix(1, len(words))
    assert m.fill(0, words.view(np.float32)[None]) == 4  # the largest float rounds to infinity; then inf and two NaN
    stored = m.to_float32().view(np.uint32)[0] >> 16
    assert stored[:7].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x8000, 0x7F80, 0x7F80]
    assert np.isnan(m.to_float32()[0, 7:]).all()


def test_every_half_converts_exactly() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    m = Matrix(256, 256, "float32")
    assert m.fill(0, halves) == int(np.count_nonzero(~np.isfinite(halves)))
    assert np.array_equal(m.to_float32(), halves.astype(np.float32), equal_nan=True)


def test_every_bfloat16_is_stored_as_it_is() -> None:
    words = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    for dtype in ("bfloat16", "float32"):
        m = Matrix(256, 256, dtype)
        assert m.fill(0, words) == 256  # both signs of infinity and of every NaN
        finite = np.isfinite(bf16_values(words))
        assert np.array_equal(m.to_float32()[finite], bf16_values(words)[finite])
        assert np.isnan(m.to_float32())[np.isnan(bf16_values(words))].all()


def test_threads_may_fill_different_rows_at_once() -> None:
    values, m = uniform(400, 65, seed=2), Matrix(400, 65)
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda r: m.fill(r, values[r : r + 10]), range(0, 400, 10))) == 0
    assert np.array_equal(m.to_float32(), bf16_values(bf16_bits(values)))


def test_sizes_are_those_of_whole_panels() -> None:
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        m = Matrix(33, 7, dtype)
        assert (m.rows, m.cols, m.dtype, m.nbytes) == (33, 7, dtype, 64 * 8 * size)


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    m = Matrix(10, 4)
    for row, count in ((8, 3), (-1, 1), (11, 0)):
        with pytest.raises(ValueError, match=f"rows {row} to {row + count} don't fit a matrix of 10 rows"):
            m.fill(row, np.zeros((count, 4), np.float32))
    with pytest.raises(ValueError, match="weights have 5 columns, the matrix has 4"):
        m.fill(0, np.zeros((1, 5), np.float32))
    with pytest.raises(ValueError, match="must be float32, float16 or uint16"):
        m.fill(0, np.zeros((1, 4), np.float64))  # type: ignore[arg-type]
    for rows, cols in ((0, 4), (4, 0), (-1, 4)):
        with pytest.raises(ValueError, match=f"got {rows} x {cols}"):
            Matrix(rows, cols)
    with pytest.raises(ValueError, match="'int3'"):
        Matrix(4, 4, "int3")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_embed_gathers_rows_as_they_are_stored(dtype: str, threads: int) -> None:
    m, ids = matrix(77, 131, dtype, seed=3), np.array([0, 76, 31, 32, 5, 5, 64], np.int32)
    out = np.zeros((7, 131), np.float32)
    runtime(ISAS[0], threads).embed(ids, m, out)
    assert np.array_equal(out, m.to_float32()[ids])


def test_embed_refuses_ids_outside_the_matrix() -> None:
    m, out = matrix(10, 4, "float32", seed=4), np.zeros((2, 4), np.float32)
    for bad in (-1, 10):
        with pytest.raises(ValueError, match=rf"token id {bad} at 1 is not in \[0, 10\)"):
            runtime(ISAS[0]).embed(np.array([3, bad], np.int32), m, out)
    assert not out.any()
