"""int8 and int4 weights and 16-bit activations in NumPy, as csrc/quantise.cpp and csrc/linear_int.inl round them.

Owns the rounding of weights and activations. Works on the values, not on the layout: a matrix here holds the float32
values that its integers and scales stand for.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Quantised = Literal["int8", "int4"]

# Columns that share a scale, and the bytes of such a group for the 32 rows of a panel: scales, then weights.
DEPTH = {"int8": 64, "int4": 32}
GROUP_BYTES = {"int8": 64 + 32 * 64, "int4": 64 + 32 * 32 // 2}

_ROUNDER = np.float32(12582912.0)
_SMALLEST = np.float32(2.0**-100)  # magnitudes up to here count as zero


def _round(x: F32) -> F32:
    return ((x + _ROUNDER) - _ROUNDER).astype(np.float32)


def _grouped(values: F32, depth: int) -> F32:
    """[rows, groups, depth], the last group padded with zeros."""
    rows, cols = values.shape
    groups = -(-cols // depth)
    padded = np.zeros((rows, groups * depth), np.float32)
    padded[:, :cols] = values
    return padded.reshape(rows, groups, depth)


def quantised_values(values: F32, kind: Quantised) -> F32:
    """What [rows, cols] of float32 weights are once packed."""
    groups = _grouped(values, DEPTH[kind])
    with np.errstate(all="ignore"):  # weights that are not finite are counted elsewhere, and refused
        rounded = _int8(groups) if kind == "int8" else _int4(groups)
    return np.ascontiguousarray(rounded.reshape(len(values), -1)[:, : values.shape[1]])


def _int8(w: F32) -> F32:
    top = np.abs(w).max(axis=2, keepdims=True)
    bits = (top / np.float32(127.0)).view(np.uint32)
    scale = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    inverse = np.where(top > _SMALLEST, np.float32(1.0) / scale, np.float32(0.0))
    return np.asarray(scale * np.clip(_round(w * inverse), -127, 127), dtype=np.float32)


def _sayable(scale: F32) -> F32:
    """The nearest scale of 5 bits of exponent and 5 of mantissa."""
    held = np.clip(scale, np.float32(2.0**-26), np.float32(63.0)).astype(np.float32)
    return ((held.view(np.uint32) + np.uint32(1 << 17)) & np.uint32(~((1 << 18) - 1) & 0xFFFFFFFF)).view(np.float32)


def _q(x: F32, inverse: F32, zero: F32) -> F32:
    return np.clip(_round(x * inverse + zero * np.float32(0.25)), 0, 15).astype(np.float32)


class _Fit:
    """scale * (4 * q - zero) for each group, its squared error, and the sums that refine it, in column order."""

    def __init__(self, w: F32, scale: F32, zero: F32) -> None:
        self.scale, self.zero = scale, zero
        self.error, self.q, self.w, self.wq, self.qq = (np.zeros(w.shape[:2], np.float32) for _ in range(5))
        inverse = np.float32(0.25) / scale
        for c in range(w.shape[2]):
            x = w[:, :, c]
            q = np.float32(4.0) * _q(x, inverse, zero)
            miss = x - scale * (q - zero)
            self.error += miss * miss
            self.q += q
            self.w += x
            self.wq += x * q
            self.qq += q * q

    def refined(self) -> tuple[F32, F32]:
        count = np.float32(DEPTH["int4"])

        def zero_for(scale: F32) -> F32:
            return np.clip(_round((self.q - self.w / scale) * (np.float32(1.0) / count)), 0, 63).astype(np.float32)

        zero = zero_for(self.scale)
        above = self.wq - zero * self.w
        below = (self.qq - np.float32(2.0) * zero * self.q) + count * zero * zero
        usable = (above > 0) & (below > 0)
        scale = np.where(usable, _sayable(np.where(usable, above / below, np.float32(1.0))), self.scale)
        return scale, zero_for(scale)


def _int4(w: F32) -> F32:
    low, high = np.minimum(w.min(axis=2), 0), np.maximum(w.max(axis=2), 0)
    best_scale, best_zero = np.ones_like(low), np.full_like(low, 32.0)
    best_error = np.full_like(low, np.inf)
    for n in range(26, 33):
        scale = _sayable((high - low) * (np.float32(0.5) / np.float32(n)))
        zero = np.clip(_round(np.float32(30.0) - np.float32(0.5) * (high + low) / scale), 0, 63).astype(np.float32)
        fit = _Fit(w, scale, zero)
        for candidate in (fit, _Fit(w, *fit.refined())):
            better = candidate.error < best_error
            best_scale = np.where(better, candidate.scale, best_scale)
            best_zero = np.where(better, candidate.zero, best_zero)
            best_error = np.where(better, candidate.error, best_error)
    best_zero = np.where(low < high, best_zero, np.float32(32.0))
    scale, zero = best_scale[:, :, None], best_zero[:, :, None]
    four_q = np.float32(4.0) * _q(w, np.float32(0.25) / scale, zero)
    return np.asarray(scale * (four_q - zero), dtype=np.float32)


def rounded_activations(x: F32, kind: Quantised) -> F32:
    """Rows of activations as a product with such weights sees them: 16-bit integers times one step a group.

    A group with a value that is not finite is NaN.
    """
    groups = _grouped(x, DEPTH[kind])
    top = np.abs(groups).max(axis=2, keepdims=True)
    finite = np.isfinite(groups).all(axis=2, keepdims=True)
    usable = finite & (top > _SMALLEST)
    with np.errstate(all="ignore"):
        inverse = np.where(usable, np.float32(32767.0) / top, np.float32(0.0))
        whole = _round(np.where(usable, groups, np.float32(0.0)) * inverse)
        step = np.where(usable, top * np.float32(1.0 / 32767.0), np.where(finite, np.float32(0.0), np.float32(np.nan)))
        rounded = (whole * step).reshape(len(x), -1)[:, : x.shape[1]]
    return np.asarray(rounded, dtype=np.float32)
