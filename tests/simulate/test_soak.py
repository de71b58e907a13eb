"""Long histories without a model leave nothing, and a fault planted in the cache doesn't go unnoticed."""

import pytest

from statemark.errors import IntegrityError
from statemark.simulate.soak import Soak


def test_a_short_soak_leaves_nothing_and_reuses_much():
    soak = Soak(check_every=20)
    stats = soak.run(400).stats()
    assert soak.finished + soak.aborted == 400
    assert soak.aborted > 0
    assert stats["marks_evicted"] > 100, "the cache must be too small, or nothing is shown"
    assert stats["prompt_tokens_cached"] > stats["tokens_computed"] / 4
    assert stats.get("integrity_errors", 0) == 0


@pytest.mark.slow
def test_a_soak_of_100_000_requests_leaves_no_page_and_no_mark():
    soak = Soak(seed=1, check_every=5_000)
    engine = soak.run(100_000)
    assert soak.finished + soak.aborted == 100_000
    assert engine.stats()["marks_evicted"] > 100_000
    assert not engine.cache.index._nodes
    assert not engine._live
    assert not engine._later
    assert len(engine.cache.order) == 0


def test_a_short_soak_with_a_directory_reuses_from_disk_and_leaves_no_file(tmp_path):
    soak = Soak(seed=2, check_every=20, folder=tmp_path, disk_bytes=1 << 18)  # however slow the writer is
    stats = soak.run(300).stats()
    assert stats["disk_hits"] > 0, "the cache must be too small, or nothing is shown"
    assert stats["disk_evicted"] > 0
    assert not any(stats.get(f"disk_{reason}", 0) for reason in ("damaged", "truncated", "stamp", "failed", "orphan"))


@pytest.mark.slow
def test_a_soak_of_20_000_requests_with_a_directory_leaves_no_page_no_mark_and_no_file(tmp_path):
    soak = Soak(seed=4, check_every=10_000, folder=tmp_path)
    engine = soak.run(20_000)
    assert soak.finished + soak.aborted == 20_000
    assert engine.stats()["disk_hits"] > 200


def test_files_that_are_damaged_all_the_time_are_counted_and_nothing_else_happens(tmp_path):
    soak = Soak(seed=5, check_every=20, folder=tmp_path, damage=0.3)
    stats = soak.run(400).stats()
    assert soak.finished + soak.aborted == 400
    assert soak.damaged > 50
    assert sum(stats.get(f"disk_{reason}", 0) for reason in ("damaged", "truncated", "gone", "orphan")) > 0
    assert stats.get("integrity_errors", 0) == 0


def leak_a_file(engine):
    engine.disk.folder.path.joinpath("0" * 32 + ".tmp").write_bytes(b"")


def test_a_planted_file_is_found(tmp_path, monkeypatch):
    soak = Soak(folder=tmp_path)
    step = soak._step
    monkeypatch.setattr(soak, "_step", lambda engine, draw: (leak_a_file(engine), step(engine, draw)))
    with pytest.raises(IntegrityError, match="files are left"):
        soak.run(5)


def leak_a_page(engine):
    assert engine.cache.take_page() is not None


def leak_a_slot(engine):
    assert engine.cache.take_slot() is not None  # makes room: in a full cache there is none to leak


def lose_a_mark(engine):
    mark = next(m for m in engine.cache.index.marks() if m.entry)
    engine.cache.order.drop(mark)


def wrong_parent(engine):
    marks = [m for m in engine.cache.index.marks() if m.parent is not None]
    marks[0].parent = None


@pytest.mark.parametrize("damage", [leak_a_page, leak_a_slot, lose_a_mark, wrong_parent])
def test_a_planted_leak_is_found(damage, monkeypatch):
    soak = Soak(check_every=1)
    step, count = soak._step, [0]

    def damaged(engine, draw):
        step(engine, draw)
        count[0] += 1
        if count[0] == 150:
            damage(engine)

    monkeypatch.setattr(soak, "_step", damaged)
    with pytest.raises(IntegrityError):
        soak.run(300)


def test_equal_seeds_give_equal_histories():
    assert Soak(seed=3).run(150).stats() == Soak(seed=3).run(150).stats()
    assert Soak(seed=3).run(150).stats() != Soak(seed=4).run(150).stats()
