"""What the machine can do at all, measured in the same run as the figures that are compared with it.

Two limits bound a language model on a CPU: how fast it multiplies (prefill) and how fast it reads memory (decode).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from statemark.kernels import Matrix, Runtime

# Larger than the caches of any machine that this is likely to run on, and read in a moment.
_READ_BYTES = 512 * 2**20
_COLS = 4096

# Rounds of multiply-adds from registers: some milliseconds.
_ROUNDS = 200_000
_SETTLE_SECONDS = 0.4


@dataclass(frozen=True)
class Limits:
    """`product_rate`: floating-point operations a second (a multiply-add is two) that all threads do from registers,
    in the instructions that products of this precision use. `read_rate`: bytes a second that they read together.
    """

    product_rate: float
    read_rate: float


def measure_limits(runtime: Runtime, dtype: str, *, repeats: int = 5) -> Limits:
    operations = 0.0

    def multiply() -> None:
        nonlocal operations
        operations = runtime.peak_products(_ROUNDS, dtype)

    # Threads that have just woken may share a core for a tenth of a second; all runs would see half of the machine.
    settled = time.perf_counter() + _SETTLE_SECONDS
    while time.perf_counter() < settled:
        multiply()
    product_seconds = best_seconds(multiply, 4 * repeats)
    matrix = _matrix(_READ_BYTES)
    read_seconds = best_seconds(lambda: runtime.read_memory(matrix), repeats)
    return Limits(operations / product_seconds, matrix.nbytes / read_seconds)


def _matrix(nbytes: int) -> Matrix:
    """Every page written: pages that nobody has touched are all the same one, and would be read from cache."""
    rows = nbytes // (4 * _COLS)
    block = np.ones((min(rows, 1024), _COLS), dtype=np.float32)
    matrix = Matrix(rows=rows, cols=_COLS, dtype="float32")
    for first in range(0, rows, len(block)):
        matrix.fill(first, block[: rows - first])
    return matrix


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest run, after one that doesn't count: a limit is what nothing disturbed."""
    work()
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)
