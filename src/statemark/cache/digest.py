"""Two hashes over token ids: the digest that names a prefix, and the stamp that a state carries.

The digest (blake2b, 128 bits, chained over pages, started from fingerprint and salt) is the key of the index.
The stamp (a rolling polynomial of 64 bits) is cheap enough for every kernel to advance with each token that a
state consumes; it says what the state has really seen, independently of what the scheduler believes.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

PAGE_TOKENS = 16
_STAMP_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no information is shifted out; the kernels use the same
_MASK = (1 << 64) - 1
_BLOCK = 1024
_POWERS = np.array([pow(_STAMP_FACTOR, _BLOCK - 1 - i, 1 << 64) for i in range(_BLOCK)], dtype=np.uint64)

Tokens = npt.NDArray[np.int32]


def root_digest(fingerprint: str, salt: str) -> bytes:
    """Digest of the empty prefix. Lengths are written first, so no pair of (fingerprint, salt) reads like another."""
    f, s = fingerprint.encode(), salt.encode()
    return hashlib.blake2b(
        len(f).to_bytes(8, "little") + f + len(s).to_bytes(8, "little") + s, digest_size=16, person=b"statemark-root"
    ).digest()


def chain(parent: bytes, tokens: bytes) -> bytes:
    """Digest of a prefix that extends the prefix of digest `parent` by `tokens` (int32, little endian)."""
    return hashlib.blake2b(tokens, digest_size=16, key=parent).digest()


def stamp_seed(root: bytes) -> int:
    """Where the stamp of an empty state starts: differs by salt and model, as the digest does."""
    return int.from_bytes(root[:8], "little")


def roll_stamp(stamp: int, tokens: Tokens) -> int:
    """The stamp after consuming `tokens`: h = h * 0x9E3779B97F4A7C15 + token + 1 (mod 2^64) for each in turn."""
    for start in range(0, len(tokens), _BLOCK):
        part = tokens[start : start + _BLOCK].astype(np.uint64) + np.uint64(1)
        n = len(part)
        tail = int(np.sum(part * _POWERS[_BLOCK - n :], dtype=np.uint64))  # wraps, which is the arithmetic we want
        stamp = (stamp * pow(_STAMP_FACTOR, n, 1 << 64) + tail) & _MASK
    return stamp
