"""How far two sets of logits are apart, and how far they may be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Float32 mode, relative to the logits' own standard deviation (about 3). Both sides hold activations in float32 and
# differ in the order of their sums, so single roundings of 6e-8 accumulate over a few hundred products and up to
# fourteen blocks: 2e-6 to 5e-6 in the root mean square, measured. Single positions may be worse by far: a recurrent
# head whose query happens to be nearly orthogonal to all it remembers is normalised by its own tiny size, which
# magnifies whatever rounding it has; both sides are equally wrong there, so the largest difference gets more room.
RMS_TOLERANCE = 1e-5
MAX_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Distance:
    rms: float
    largest: float

    @classmethod
    def between(cls, reference: np.ndarray, other: np.ndarray) -> Distance:
        difference = other.astype(np.float64) - reference
        scale = float(reference.std())
        return cls(float(np.sqrt(np.mean(difference**2))) / scale, float(np.abs(difference).max()) / scale)

    @property
    def is_rounding(self) -> bool:
        return self.rms < RMS_TOLERANCE and self.largest < MAX_TOLERANCE


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: np.ndarray = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result


def mean_kl(reference: np.ndarray, other: np.ndarray) -> float:
    """KL(reference || other), averaged over positions."""
    p, q = log_softmax(reference), log_softmax(other)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())
