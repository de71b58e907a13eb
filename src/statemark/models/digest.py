"""A digest of weights that reads every byte and costs little more than reading them.

Not cryptographic. It tells checkpoints apart so that states of one are never used with another; it does not protect
against somebody who crafts weights on purpose.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_COLUMNS = 256


class ContentDigest:
    """Feed blocks in order; the result depends on every byte and on the cut into blocks.

    A block is laid out as rows of 256 words of 64 bits. All row sums and all column sums (modulo 2^64) go into a
    blake2b: any single changed word changes two sums, and a moved one changes at least one. Summing runs at the speed
    of the cache, several times faster than hashing the bytes would.
    """

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def update(self, block: NDArray[np.generic]) -> None:
        raw = np.ascontiguousarray(block).reshape(-1).view(np.uint8)
        whole = raw.size // (8 * _COLUMNS) * (8 * _COLUMNS)
        words = raw[:whole].view(np.uint64).reshape(-1, _COLUMNS)
        self._hash.update(raw.size.to_bytes(8, "little"))
        self._hash.update(words.sum(axis=0, dtype=np.uint64).tobytes())
        self._hash.update(words.sum(axis=1, dtype=np.uint64).tobytes())
        self._hash.update(raw[whole:].tobytes())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
