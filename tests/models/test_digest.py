"""The content digest sees every byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.models.digest import ContentDigest


def digest(*blocks: np.ndarray) -> str:
    d = ContentDigest()
    for block in blocks:
        d.update(block)
    return d.hexdigest()


def bytes_block(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("size", [1, 7, 8, 2047, 2048, 2049, 5000, 2048 * 300 + 5])
def test_any_single_bit_changes_it(size: int) -> None:
    block = bytes_block(size)
    before = digest(block)
    assert digest(block.copy()) == before
    for at in np.unique(np.linspace(0, size - 1, 40).astype(int)):
        for bit in (0, 7):
            changed = block.copy()
            changed[at] ^= 1 << bit
            assert digest(changed) != before


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_swapping_two_different_words_changes_it(data: st.DataObject) -> None:
    words = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 2**63, 256 * 8, dtype=np.uint64)
    i, j = data.draw(st.lists(st.integers(0, len(words) - 1), min_size=2, max_size=2, unique=True))
    swapped = words.copy()
    swapped[[i, j]] = swapped[[j, i]]
    assert digest(swapped) != digest(words)


def test_order_and_length_count() -> None:
    a, b = bytes_block(4096, 1), bytes_block(4096, 2)
    assert len({digest(a, b), digest(b, a), digest(a), digest(b), digest(a, np.zeros(4096, np.uint8)), digest()}) == 6


def test_shape_and_type_do_not_matter_only_bytes() -> None:
    a = np.arange(3000, dtype=np.float32)
    assert digest(a) == digest(a.reshape(30, 100)) == digest(a.view(np.uint16))
