"""What a cache without limit could reuse: the longest beginning that any earlier request of the same salt has had."""

from __future__ import annotations

import hashlib

import numpy as np

from statemark.replay.workload import Abstract

_STEP = 16  # tokens between the prefixes that are remembered


class Ideal:
    """Give it prompts in the order in which they are sent. Exact but for beginnings that part within 16 tokens."""

    def __init__(self) -> None:
        self._known: dict[bytes, Abstract] = {}

    def cached(self, salt: str, tokens: Abstract) -> int:
        """Tokens that could come from a cache, at most all but one; the prompt is known afterwards."""
        digest = hashlib.blake2b(salt.encode(), digest_size=16).digest()
        chain = [digest]
        for start in range(0, len(tokens) - len(tokens) % _STEP, _STEP):
            digest = hashlib.blake2b(tokens[start : start + _STEP].tobytes(), digest_size=16, key=digest).digest()
            chain.append(digest)
        depth = next((i for i in range(len(chain) - 1, -1, -1) if chain[i] in self._known), None)
        common = 0
        if depth is not None:
            common = depth * _STEP
            other = self._known[chain[depth]]
            count = min(len(tokens), len(other))
            different = np.nonzero(tokens[common:count] != other[common:count])[0]
            common = common + int(different[0]) if len(different) else count
        for d in chain:
            self._known[d] = tokens
        return min(common, len(tokens) - 1)
