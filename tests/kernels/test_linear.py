"""Matrix products: a row never depends on its mates, the order over k is the documented one, errors are bounded."""

from __future__ import annotations

import numpy as np
import pytest

from statemark.kernels import Matrix
from tests.kernels.inputs import F32, ISAS, bf16_bits, bf16_values, matrix, runtime, uniform

FLOATS = ("bfloat16", "float32")
DTYPES = (*FLOATS, "int8", "int4")
EPS = 2.0**-24
ROUNDS_ACTIVATIONS = ("avx512_bf16", "amx_bf16")  # to bfloat16, where the weights are bfloat16


def product(isa: str, x: F32, m: Matrix, threads: int = 1) -> F32:
    out = np.full((len(x), m.rows), np.nan, np.float32)
    runtime(isa, threads).linear(x, m, out)
    return out


def one_by_one(isa: str, x: F32, m: Matrix) -> F32:
    return np.concatenate([product(isa, x[i : i + 1], m) for i in range(len(x))])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (45, 515), (64, 256), (33, 2), (96, 300)])
def test_a_row_is_the_same_alone_and_among_1_to_70(isa: str, dtype: str, rows: int, cols: int) -> None:
    x, m = uniform(70, cols, seed=1), matrix(rows, cols, dtype, seed=2)
    alone = one_by_one(isa, x, m)
    assert np.isfinite(alone).all()
    for count in range(1, 71):
        assert np.array_equal(product(isa, x[:count], m), alone[:count]), count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [193, 401, 2050])
def test_a_row_is_the_same_among_many_and_at_any_place(isa: str, dtype: str, count: int) -> None:
    # 193 needs a second block of rows, 401 a third, 2050 a second turn of packing
    x, m = uniform(count, 270, seed=3), matrix(40, 270, dtype, seed=4)
    together = product(isa, x, m)
    for i in (0, 5, 191, 192, count - 1):
        assert np.array_equal(product(isa, x[i : i + 1], m)[0], together[i]), i
    assert np.array_equal(product(isa, x[::-1].copy(), m), together[::-1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 7, 48, 49, 200])
def test_the_number_of_threads_changes_nothing(isa: str, dtype: str, count: int) -> None:
    x, m = uniform(count, 260, seed=5), matrix(700, 260, dtype, seed=6)
    expected = product(isa, x, m, threads=1)
    for threads in (2, 3):
        assert np.array_equal(product(isa, x, m, threads=threads), expected), threads


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_where_chains_go_through_memory(isa: str, dtype: str) -> None:
    x, m = uniform(13, 2051, seed=21), matrix(45, 2051, dtype, seed=22)  # 1024 deep blocks, and an odd rest
    alone = one_by_one(isa, x, m)
    assert np.isfinite(alone).all()
    for count in (2, 6, 7, 13):
        assert np.array_equal(product(isa, x[:count], m), alone[:count]), count


def chain_of_blocks(x: F32, w: F32) -> F32:
    """The order of AMX: 32 k at a time, even and odd ones apart."""
    acc = np.zeros((len(x), len(w)), np.float32)
    for k0 in range(0, x.shape[1], 32):
        halves = np.zeros((2, len(x), len(w)), np.float32)
        for k in range(k0, min(k0 + 32, x.shape[1])):
            product = x[:, None, k].astype(np.float64) * w[None, :, k].astype(np.float64)
            halves[k % 2] = (halves[k % 2].astype(np.float64) + product).astype(np.float32)
        acc = acc + (halves[0] + halves[1])
    return acc


def chain(isa: str, x: F32, w: F32, dtype: str) -> F32:
    """The documented order in NumPy. Inputs are such that a float64 sum of a product and the chain is exact."""
    acc = np.zeros((len(x), len(w)), np.float32)
    dot = dtype == "bfloat16" and isa.startswith(ROUNDS_ACTIVATIONS)
    if dot:
        x = bf16_values(bf16_bits(x))
    if dot and isa.startswith("amx"):
        return chain_of_blocks(x, w)
    for k in [k ^ 1 for k in range(x.shape[1])] if dot else range(x.shape[1]):  # the later of a pair comes first
        products = x[:, None, k].astype(np.float64) * w[None, :, k].astype(np.float64)
        if isa == "portable":  # two roundings
            products = products.astype(np.float32).astype(np.float64)
        acc = (acc.astype(np.float64) + products).astype(np.float32)
    return acc


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 3, 6, 64])
def test_an_output_is_one_chain_over_k(isa: str, dtype: str, count: int) -> None:
    cols = 2100  # more than two blocks of k, however deep they are: chains go through memory
    x = uniform(count, cols, seed=7)
    w = np.sign(uniform(40, cols, seed=8)) * (0.25 + np.floor(np.abs(uniform(40, cols, seed=9)) * 192) / 256)
    m = Matrix(40, cols, dtype)
    m.fill(0, w.astype(np.float32))
    assert np.array_equal(m.to_float32(), w.astype(np.float32))  # bfloat16 holds them exactly
    assert np.array_equal(product(isa, x, m), chain(isa, x, m.to_float32(), dtype))


def of_every_size(rows: int, cols: int, exponents: tuple[int, int], seed: int) -> F32:
    """Numbers whose sizes differ wildly; one in a thousand is infinite and one is not a number."""
    rng = np.random.default_rng(seed)
    values = rng.choice([-1.0, 1.0], (rows, cols)) * rng.uniform(1, 2, (rows, cols))
    values *= np.exp2(rng.integers(*exponents, (rows, cols)).astype(np.float64))
    special = rng.random((rows, cols))
    return np.where(special < 0.001, np.inf, np.where(special > 0.999, np.nan, values)).astype(np.float32)


@pytest.mark.parametrize("isa", ROUNDS_ACTIVATIONS)
@pytest.mark.parametrize("exponents", [(-140, 80), (-80, 40), (-70, -55)])
def test_the_emulation_rounds_as_the_hardware_does(isa: str, exponents: tuple[int, int]) -> None:
    if not {isa, f"{isa}_emulated"} <= set(ISAS):
        pytest.skip("needs the hardware and a test build")
    m = Matrix(64, 40)
    m.fill(0, of_every_size(64, 40, exponents, seed=20))
    x = of_every_size(60, 40, exponents, seed=21)
    x[::7, ::5] = np.uint32(0x007FFFFF).view(np.float32)  # denormal, and normal once rounded
    for count in (1, 16, 60):
        hardware, emulated = product(isa, x[:count], m), product(f"{isa}_emulated", x[:count], m)
        assert count == 1 or len(np.unique(hardware[np.isfinite(hardware)])) > 100
        assert np.array_equal(hardware.view(np.uint32), emulated.view(np.uint32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 5, 60])
def test_the_error_stays_below_the_bound_of_a_chain(isa: str, dtype: str, count: int) -> None:
    x, m = uniform(count, 777, seed=10), matrix(50, 777, dtype, seed=11)
    if dtype == "bfloat16" and isa.startswith(ROUNDS_ACTIVATIONS):
        exact_x = bf16_values(bf16_bits(x)).astype(np.float64)
    else:
        exact_x = x.astype(np.float64)
    w = m.to_float32().astype(np.float64)
    bound = (777 + 2) * EPS * (np.abs(exact_x) @ np.abs(w).T)
    assert (np.abs(product(isa, x, m) - exact_x @ w.T) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 4, 70])
def test_bias_and_accumulate_are_added_once_at_the_end(isa: str, dtype: str, count: int) -> None:
    rt, x, m = runtime(isa), uniform(count, 530, seed=12), matrix(45, 530, dtype, seed=13)
    bias, before = uniform(45, seed=14), uniform(count, 45, seed=15)
    plain = product(isa, x, m)
    for use_bias in (False, True):
        for accumulate in (False, True):
            out = before.copy()
            rt.linear(x, m, out, bias if use_bias else None, accumulate)
            expected = plain + bias if use_bias else plain
            assert np.array_equal(out, before + expected if accumulate else expected), (use_bias, accumulate)


@pytest.mark.parametrize("isa", ISAS)
def test_rows_may_have_a_stride(isa: str) -> None:
    wide, m = uniform(9, 400, seed=16), matrix(50, 300, "bfloat16", seed=17)
    out = np.full((9, 80), 7.0, np.float32)
    runtime(isa).linear(wide[:, 40:340], m, out[:, 20:70])
    assert np.array_equal(out[:, 20:70], product(isa, wide[:, 40:340].copy(), m))
    assert (out[:, :20] == 7.0).all()
    assert (out[:, 70:] == 7.0).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_stay_in_their_row(isa: str, dtype: str) -> None:
    x, m = uniform(20, 40, seed=18), matrix(33, 40, dtype, seed=19)
    clean = product(isa, x, m)
    x[3, 7], x[11, 0] = np.nan, np.inf
    dirty = product(isa, x, m)
    assert np.isnan(dirty[3]).all()
    assert not np.isfinite(dirty[11]).any()
    others = [i for i in range(20) if i not in (3, 11)]
    assert np.array_equal(dirty[others], clean[others])


def test_wrong_shapes_and_types_are_refused_with_numbers() -> None:
    rt, m, out = runtime(ISAS[0]), matrix(8, 6, "float32", seed=20), np.zeros((2, 8), np.float32)
    x = uniform(2, 6, seed=21)
    with pytest.raises(ValueError, match="x has 5 columns, the matrix has 6"):
        rt.linear(x[:, :5], m, out)
    with pytest.raises(ValueError, match="out must be 2 x 8, is 2 x 7"):
        rt.linear(x, m, out[:, :7])
    with pytest.raises(ValueError, match="bias must have 8 elements, has 7"):
        rt.linear(x, m, out, np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="inner stride is 2"):
        rt.linear(uniform(2, 12, seed=22)[:, ::2], m, out)
    with pytest.raises(TypeError):
        rt.linear(x.astype(np.float64), m, out)  # type: ignore[arg-type]
    read_only = out.copy()
    read_only.flags.writeable = False
    with pytest.raises(TypeError):
        rt.linear(x, m, read_only)


@pytest.mark.parametrize("isa", ISAS)
def test_no_rows_is_no_work(isa: str) -> None:
    runtime(isa, 2).linear(np.zeros((0, 6), np.float32), matrix(8, 6, "float32", seed=23), np.zeros((0, 8), np.float32))
