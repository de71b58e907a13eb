"""Two hashes over token ids: the digest that names a prefix, and the stamp that a state carries.

The digest (blake2b, 128 bits, chained over pages, started from fingerprint, salt and adapter) is the key of the index.
The stamp (a rolling polynomial of 64 bits) is cheap enough for every kernel to advance with each token that a
state consumes; it says what the state has really seen, independently of what the scheduler believes.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from statemark.errors import IntegrityError

PAGE_TOKENS = 16
_PAGE_RAW = 4 * PAGE_TOKENS  # bytes of a page's token ids
_STAMP_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no information is shifted out; the kernels use the same
_MASK = (1 << 64) - 1
_BLOCK = 1024
_POWERS = np.array([pow(_STAMP_FACTOR, _BLOCK - 1 - i, 1 << 64) for i in range(_BLOCK)], dtype=np.uint64)

Tokens = npt.NDArray[np.int32]


def root_digest(fingerprint: str, salt: str, adapter: str = "") -> bytes:
    """Digest of the empty prefix. Lengths are written first, so that no other three names read like these."""
    parts = [part.encode() for part in (fingerprint, salt, adapter)]
    lengths_first = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.blake2b(lengths_first, digest_size=16, person=b"statemark-root").digest()


def chain(parent: bytes, tokens: bytes) -> bytes:
    """Digest of a prefix that extends the prefix of digest `parent` by `tokens` (int32, little endian)."""
    return hashlib.blake2b(tokens, digest_size=16, key=parent).digest()


class PrefixChain:
    """The page digests of one growing token sequence, each computed once: lookups and marks of it share them.

    Every call must be given the same sequence, at most longer than before.
    """

    __slots__ = ("_pages", "root")

    def __init__(self, root: bytes, pages: list[bytes] | None = None) -> None:
        self.root = root
        self._pages = pages if pages is not None else []

    def page(self, tokens: Tokens, count: int) -> bytes:
        """Digest of the first `count` pages."""
        pages = self._pages
        done = len(pages)
        if done < count:
            digest = pages[-1] if pages else self.root
            raw = tokens[done * PAGE_TOKENS : count * PAGE_TOKENS].tobytes()
            if len(raw) != (count - done) * _PAGE_RAW:
                raise IntegrityError(f"digest of {count} pages asked of {len(tokens)} tokens")
            for start in range(0, len(raw), _PAGE_RAW):
                digest = chain(digest, raw[start : start + _PAGE_RAW])
                pages.append(digest)
        return pages[count - 1] if count else self.root

    def at(self, tokens: Tokens, position: int) -> bytes:
        """Digest of the first `position` tokens."""
        full = position // PAGE_TOKENS
        digest = self.page(tokens, full)
        tail = tokens[full * PAGE_TOKENS : position].tobytes()
        return chain(digest, tail) if tail else digest

    def fork(self, pages: int) -> PrefixChain:
        """The chain of another sequence whose first `pages` pages are the same."""
        return PrefixChain(self.root, self._pages[:pages])


def stamp_seed(root: bytes) -> int:
    """Where the stamp of an empty state starts: differs by salt and model, as the digest does."""
    return int.from_bytes(root[:8], "little")


def roll_stamp(stamp: int, tokens: Tokens) -> int:
    """The stamp after consuming `tokens`: h = h * 0x9E3779B97F4A7C15 + token + 1 (mod 2^64) for each in turn."""
    if len(tokens) == 1:  # each token of an answer
        return (stamp * _STAMP_FACTOR + int(tokens[0]) + 1) & _MASK
    for start in range(0, len(tokens), _BLOCK):
        part = tokens[start : start + _BLOCK].astype(np.uint64) + np.uint64(1)
        n = len(part)
        tail = int(np.sum(part * _POWERS[_BLOCK - n :], dtype=np.uint64))  # wraps, which is the arithmetic we want
        stamp = (stamp * pow(_STAMP_FACTOR, n, 1 << 64) + tail) & _MASK
    return stamp
