"""Pages and slots: committed when written, given back when released, copied whole; views keep the memory alive."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from statemark.kernels import Arena


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", np.uint16), ("float32", np.float32)])
def test_pages_and_slots_are_views_that_start_as_zeros(dtype: str, kind: type[np.generic]) -> None:
    arena = Arena(5, 96, dtype, 3, 40, 2)
    assert (arena.num_pages, arena.page_elems, arena.kv_dtype) == (5, 96, dtype)
    assert (arena.num_slots, arena.slot_floats, arena.num_stamps) == (3, 40, 2)
    assert arena.page(4).dtype == kind
    assert arena.stamps.shape == (3, 2, 2)
    assert arena.stamps.dtype == np.uint64
    for view in (*(arena.page(i) for i in range(5)), *(arena.slot(i) for i in range(3)), arena.stamps):
        assert not view.any()
    arena.page(3)[7], arena.slot(2)[39], arena.stamps[1, 1] = 3, 2.5, (6, 7)
    assert arena.page(3)[7] == 3
    assert arena.slot(2)[39] == 2.5
    assert arena.stamps[1, 1].tolist() == [6, 7]
    assert not arena.page(2).any()
    assert not arena.slot(1).any()


def test_a_large_arena_costs_nothing_until_it_is_written() -> None:
    before = resident_bytes()
    arena = Arena(1 << 20, 1 << 18, "bfloat16", 1 << 16, 1 << 20, 4)  # 0.5 TiB of pages, 0.25 TiB of slots
    assert resident_bytes() - before < 64 << 20
    arena.page((1 << 20) - 1)[:] = 1
    arena.slot((1 << 16) - 1)[:] = 1
    assert arena.page((1 << 20) - 1).all()
    assert resident_bytes() - before < 80 << 20


def test_released_memory_goes_back_and_reads_as_zero() -> None:
    arena = Arena(64, 1 << 19, "float32", 8, 1 << 21, 1)  # 2 MiB pages, 8 MiB slots
    for i in range(64):
        arena.page(i)[:] = 1
    for i in range(8):
        arena.slot(i)[:] = 1
    full = resident_bytes()
    for i in range(0, 64, 2):
        arena.release_page(i)
    for i in range(0, 8, 2):
        arena.release_slot(i)
    assert full - resident_bytes() > 90 << 20  # of 64 + 32 MiB
    assert not arena.page(0).any()
    assert not arena.slot(2).any()
    assert arena.page(1).all()
    assert arena.slot(3).all()
    arena.page(0)[:] = 2
    assert (arena.page(0) == 2).all()


def test_releasing_spares_the_neighbours_of_a_small_page() -> None:
    arena = Arena(100, 40, "bfloat16", 100, 24, 1)
    for i in range(100):
        arena.page(i)[:] = i
        arena.slot(i)[:] = i
    for i in range(0, 100, 3):
        arena.release_page(i)
        arena.release_slot(i)
    for i in range(100):
        if i % 3:
            assert (arena.page(i) == i).all()
            assert (arena.slot(i) == i).all()


def test_copies_take_everything_and_the_stamps() -> None:
    arena = Arena(4, 33, "bfloat16", 4, 17, 3)
    arena.page(1)[:] = np.arange(33)
    arena.slot(1)[:] = np.arange(17)
    arena.stamps[1] = [[1, 2], [3, 4], [5, 6]]
    arena.copy_page(1, 3)
    arena.copy_slot(1, 3)
    arena.copy_slot(1, 1)
    assert np.array_equal(arena.page(3), np.arange(33))
    assert np.array_equal(arena.slot(3), np.arange(17))
    assert arena.stamps[3].tolist() == arena.stamps[1].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert not arena.page(2).any()
    assert not arena.stamps[2].any()


def test_a_released_slot_forgets_its_stamps() -> None:
    arena = Arena(1, 1, "float32", 2, 1, 2)
    arena.stamps[:] = 9
    arena.release_slot(0)
    assert not arena.stamps[0].any()
    assert (arena.stamps[1] == 9).all()


def test_views_outlive_the_arena() -> None:
    arena = Arena(2, 64, "float32", 2, 64, 1)
    arena.page(1)[:], arena.slot(1)[:], arena.stamps[:] = 3, 4, 5
    page, slot, stamps = arena.page(1), arena.slot(1), arena.stamps
    del arena
    gc.collect()
    assert (page == 3).all()
    assert (slot == 4).all()
    assert (stamps == 5).all()


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_indices_out_of_range_are_refused_with_numbers(index: int) -> None:
    arena = Arena(3, 8, "float32", 3, 8, 1)
    for call in (
        lambda: arena.page(index),
        lambda: arena.release_page(index),
        lambda: arena.copy_page(index, 0),
        lambda: arena.copy_page(0, index),
    ):
        with pytest.raises(ValueError, match=f"page {index} is out of range: the arena has 3"):
            call()
    for call in (
        lambda: arena.slot(index),
        lambda: arena.release_slot(index),
        lambda: arena.copy_slot(index, 0),
        lambda: arena.copy_slot(0, index),
    ):
        with pytest.raises(ValueError, match=f"slot {index} is out of range: the arena has 3"):
            call()


def test_impossible_sizes_are_refused() -> None:
    for sizes in ((-1, 8, 3, 8, 1), (3, -8, 3, 8, 1), (3, 8, -3, 8, 1), (3, 8, 3, -8, 1), (3, 8, 3, 8, -1)):
        with pytest.raises(ValueError, match="an arena's sizes can't be"):
            Arena(sizes[0], sizes[1], "float32", *sizes[2:])
    with pytest.raises(ValueError, match="doesn't fit the address space"):
        Arena(1 << 30, 1 << 30, "float32", 1, 1, 1)
    with pytest.raises(ValueError, match="'float16'"):
        Arena(1, 1, "float16", 1, 1, 1)
    empty = Arena(0, 0, "float32", 0, 0, 0)
    assert empty.stamps.shape == (0, 0, 2)
