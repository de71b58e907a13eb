"""Scratch memory is reused, and grows in steps."""

from __future__ import annotations

import numpy as np

from statemark.models.workspace import Workspace


def test_rows_share_memory_and_growth_is_in_steps() -> None:
    space = Workspace({"a": 10, "b": 3})
    assert space.nbytes == 0
    space.reserve(1)
    assert space.nbytes == 256 * 13 * 4
    first = space.rows("a", 1)
    space.reserve(256)
    assert np.shares_memory(first, space.rows("a", 256))
    space.reserve(257)
    assert space.nbytes == 512 * 13 * 4
    assert not np.shares_memory(first, space.rows("a", 1))


def test_views_are_contiguous_of_any_width() -> None:
    space = Workspace({"a": 10})
    space.reserve(4)
    for width in (10, 7, 1):
        view = space.rows("a", 4, width)
        assert view.shape == (4, width)
        assert view.flags.c_contiguous
    assert np.shares_memory(space.rows("a", 4, 1), space.rows("a", 4, 7))
