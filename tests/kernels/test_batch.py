"""A batch refuses everything that a kernel would otherwise have to check: with the numbers, before any work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemark.kernels import Batch
from tests.kernels.inputs import i32, rolled

GOOD: dict[str, Any] = {
    "token_ids": i32(5, 6, 7, 8, 9),
    "seq_start": i32(0, 3, 5),
    "seq_position": i32(0, 20),
    "seq_hash": np.array([1, 2], np.uint64),
    "state_in": i32(-1, 4),
    "state_out": i32(1, 4),
    "marks": np.array([[0, 1, 2], [0, 3, 3], [1, 2, 5]], np.int32),
    "page_table": np.array([[0, 9], [1, 2]], np.int32),
}


def test_a_good_batch_is_accepted_and_hashes_its_prefixes() -> None:
    batch = Batch(**GOOD)
    assert (batch.num_tokens, batch.num_seqs) == (5, 2)
    assert batch.end_hash == [rolled(1, i32(5, 6, 7)), rolled(2, i32(8, 9))]
    assert batch.mark_hash == [rolled(1, i32(5)), rolled(1, i32(5, 6, 7)), rolled(2, i32(8, 9))]


def test_unused_columns_of_the_page_table_may_hold_anything() -> None:
    table = np.array([[0, -1, -7], [1, 2, 1 << 30]], np.int32)
    assert Batch(**{**GOOD, "page_table": table}).num_seqs == 2


@given(st.integers(0, (1 << 64) - 1), st.lists(st.integers(0, (1 << 31) - 1), min_size=1, max_size=50))
def test_the_rolling_hash_is_that_of_the_formula(seed: int, tokens: list[int]) -> None:
    batch = Batch(
        np.array(tokens, np.int32), i32(0, len(tokens)), i32(0), np.array([seed], np.uint64), i32(-1), i32(0),
        np.zeros((0, 3), np.int32), np.arange(4, dtype=np.int32)[None],
    )  # fmt: skip
    assert batch.end_hash == [rolled(seed, np.array(tokens, np.int64))]


def test_arrays_are_copied() -> None:
    mine = {name: value.copy() for name, value in GOOD.items()}
    batch = Batch(**mine)
    for value in mine.values():
        value[:] = 0
    assert batch.end_hash == Batch(**GOOD).end_hash


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("token_ids", i32(5, 6, 7, 8), "seq_start must go from 0 to 4, goes from 0 to 5"),
        ("token_ids", i32(5, 6, -1, 8, 9), "token id -1 at 2 is negative"),
        ("seq_start", i32(1, 3, 5), "goes from 1 to 5"),
        ("seq_start", i32(0, 5), "seq_start has 2 elements for 2 sequences"),
        ("seq_start", i32(0, 5, 5), "sequence 1 has 0 tokens"),
        ("seq_start", i32(0, 6, 5), "sequence 1 has -1 tokens"),
        ("seq_position", i32(0, -1), "sequence 1 is at position -1"),
        ("seq_position", i32(0, 2**31 - 1), "sequence 1 is at position 2147483647"),
        ("seq_position", i32(0, 0), "sequence 1 at position 0 has state_in 4"),
        ("seq_position", i32(0, 31), "sequence 1 needs 3 pages, page_table has 2 columns"),
        ("seq_hash", np.array([1], np.uint64), "seq_hash 1"),
        ("state_in", i32(-1, -1), "sequence 1 at position 20 has state_in -1"),
        ("state_in", i32(-1, -2), "sequence 1 at position 20 has state_in -2"),
        ("state_in", i32(0, 4), "sequence 0 at position 0 has state_in 0"),
        ("state_in", i32(-1, 1), "slot 1 is read by sequence 1 and written by sequence 0"),
        ("state_in", i32(-1, 2), "slot 2 is read by sequence 1 and written by sequence 0"),
        ("state_in", i32(-1, 5), "slot 5 is read by sequence 1 and written by sequence 1"),
        ("state_out", i32(-1, 4), "sequence 0 has state_out -1"),
        ("state_out", i32(4, 4), "slot 4 is written twice: by sequences 0 and 1"),
        ("state_out", i32(2, 4), "slot 2 is written twice: by sequences 0 and 0"),
        ("marks", np.array([[2, 1, 2]], np.int32), "mark 0 is of sequence 2 of 2"),
        ("marks", np.array([[0, 0, 2]], np.int32), "outside a chunk of 3 tokens"),
        ("marks", np.array([[0, 4, 2]], np.int32), "outside a chunk of 3 tokens"),
        ("marks", np.array([[0, 1, -1]], np.int32), "slot -1"),
        ("marks", np.array([[0, 2, 2], [0, 1, 3]], np.int32), "mark 1 isn't"),
        ("marks", np.array([[1, 1, 2], [0, 1, 3]], np.int32), "mark 1 isn't"),
        ("marks", np.array([[0, 1]], np.int32), "marks must have 3 columns"),
        ("page_table", np.array([[0, 9]], np.int32), "page_table has 1 rows for 2 sequences"),
        ("page_table", np.array([[0, 9], [1, -1]], np.int32), "sequence 1 has no page at 1"),
        ("page_table", np.array([[2, 9], [1, 2]], np.int32), "page 2 is written twice: by sequences 0 and 1"),
        ("page_table", np.array([[0, 9], [0, 2]], np.int32), "page 0 is read by sequence 1 and written by sequence 0"),
    ],
)
def test_what_cannot_be_is_refused_with_numbers(name: str, value: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Batch(**{**GOOD, name: value})


def test_full_pages_may_be_shared_by_readers() -> None:
    shared = np.array([[7, 1, 0], [7, 2, 0]], np.int32)
    batch = Batch(
        i32(1, 2), i32(0, 1, 2), i32(16, 16), np.array([1, 1], np.uint64), i32(8, 8), i32(0, 1),
        np.zeros((0, 3), np.int32), shared,
    )  # fmt: skip
    assert batch.num_seqs == 2
