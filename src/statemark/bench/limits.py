"""What the machine can do at all, measured in the same run as the figures that are compared with it.

Two limits bound a language model on a CPU: how fast it multiplies (prefill) and how fast it reads memory (decode).
Both are measured with shapes as good as a machine could wish for; a model's own shapes can only be worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from statemark.kernels import Matrix, Runtime

# Large enough that no cache of a machine with few cores holds it, small enough to be read in a moment.
_READ_BYTES = 512 * 2**20

# The packed matrix (2 MiB in bf16) stays in the second-level cache, the rows are many: nothing but products is left.
_ROWS, _COLS, _TOKENS = 1024, 1024, 512


@dataclass(frozen=True)
class Limits:
    """`product_rate`: floating-point operations a second (a multiply-add is two) in products of the given type, the
    better of our kernel and NumPy's float32 product. `read_rate`: bytes a second that all threads read together.
    """

    product_rate: float
    product_by: str
    read_rate: float


def measure_limits(runtime: Runtime, dtype: str, *, repeats: int = 5) -> Limits:
    rates = {f"statemark {runtime.isa}": _kernel_rate(runtime, dtype, repeats)}
    if not runtime.isa.startswith("avx512"):
        # Products in bf16 are float32 products here, so a BLAS is a fair second opinion.
        rates["numpy float32"] = _numpy_rate(repeats)
    by = max(rates, key=lambda name: rates[name])
    return Limits(rates[by], by, _read_rate(runtime.threads, repeats))


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest run, after one that doesn't count: a limit is what nothing disturbed."""
    work()
    times = []
    for _ in range(max(repeats, 1)):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def _kernel_rate(runtime: Runtime, dtype: str, repeats: int) -> float:
    rng = np.random.default_rng(0)
    matrix = Matrix(rows=_ROWS, cols=_COLS, dtype=dtype)
    matrix.fill(0, rng.standard_normal((_ROWS, _COLS), dtype=np.float32))
    x = rng.standard_normal((_TOKENS, _COLS), dtype=np.float32)
    out = np.empty((_TOKENS, _ROWS), dtype=np.float32)
    return 2.0 * _TOKENS * _ROWS * _COLS / best_seconds(lambda: runtime.linear(x, matrix, out), 4 * repeats)


def _numpy_rate(repeats: int) -> float:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((_TOKENS, _COLS), dtype=np.float32)
    b = rng.standard_normal((_COLS, _ROWS), dtype=np.float32)
    out = np.empty((_TOKENS, _ROWS), dtype=np.float32)
    return 2.0 * _TOKENS * _ROWS * _COLS / best_seconds(lambda: np.matmul(a, b, out=out), 4 * repeats)


def _read_rate(threads: int, repeats: int) -> float:
    """Every thread takes the maximum of its own stretch: one compare for 4 bytes, so memory is what it waits for."""
    data = np.ones(_READ_BYTES // 4, dtype=np.int32)
    parts = np.array_split(data, threads)
    with ThreadPoolExecutor(threads) as pool:
        seconds = best_seconds(lambda: list(pool.map(np.max, parts)), repeats)
    return _READ_BYTES / seconds
