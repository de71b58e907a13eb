"""Random weights that anybody can make again: a pure function of (seed, tensor name, index), with no library's
generator in it, so that stored expectations stay valid.

Owns the numbers and their spread. Knows no files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

# Every value is one of 65,536 equally likely ones: 16 bits of a 64-bit hash choose it from a table of quantiles.
_LEVELS = 1 << 16
_PER_WORD = 4
_BLOCK_WORDS = 1 << 16


def levels(seed: int, name: str, count: int) -> Iterator[NDArray[np.uint16]]:
    """`count` uniform 16-bit numbers in blocks. SplitMix64 counts on from a key made of seed and name."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "little")
    for first in range(0, -(-count // _PER_WORD), _BLOCK_WORDS):
        words = min(_BLOCK_WORDS, -(-count // _PER_WORD) - first)
        x = np.arange(first + 1, first + 1 + words, dtype=np.uint64)
        x *= np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(key)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        yield x.astype("<u8", copy=False).view(np.uint16)[: count - first * _PER_WORD]


@cache
def _normal_quantiles() -> F64:
    inverse = NormalDist().inv_cdf
    half = np.array([inverse((i + 0.5) / _LEVELS) for i in range(_LEVELS // 2)])
    return np.concatenate([half, -half[::-1]])


def _uniform_quantiles() -> F64:
    return (np.arange(_LEVELS) + 0.5) / _LEVELS


def _normal(mean: float, std: float) -> Callable[[], F64]:
    return lambda: mean + std * _normal_quantiles()


def _decay_rate() -> F64:
    """A_log: rates from 1 to 16, evenly in the logarithm."""
    return _uniform_quantiles() * math.log(16.0)


def _time_step_bias() -> F64:
    """dt_bias so that softplus of it lies between 0.001 and 0.1: heads remember from a few to a thousand tokens."""
    steps = np.exp(math.log(0.001) + _uniform_quantiles() * math.log(100.0))
    return np.log(np.expm1(steps))


def table(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The 65,536 values that a tensor of this name draws from.

    Sized so that the model is numerically sane and its greedy text is no constant: products keep unit scale, keys and
    queries are sharp enough to attend, logits spread with a standard deviation of about 3.
    """
    for ending, values in _SPREADS.items():
        if name.endswith(ending):
            return values().astype(np.float32)
    fan_in = math.prod(shape[1:]) if len(shape) > 1 else 1
    return _normal(0.0, fan_in**-0.5)().astype(np.float32)


_SPREADS: dict[str, Callable[[], F64]] = {
    "A_log": _decay_rate,
    "dt_bias": _time_step_bias,
    "linear_attn.norm.weight": _normal(1.0, 0.2),
    # The norms below are stored without their "1 +".
    "q_norm.weight": _normal(0.5, 0.2),
    "k_norm.weight": _normal(0.5, 0.2),
    "layernorm.weight": _normal(0.0, 0.2),
    "model.norm.weight": _normal(2.0, 0.3),
    "_proj.bias": _normal(0.0, 0.3),
}
