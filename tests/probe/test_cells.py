"""Which requests a cell sends and what it makes of hits that come late or never: on a server that is a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from statemark.probe.answer import Answer
from statemark.probe.bench import Asked, Cost
from statemark.probe.cells import Cells
from statemark.probe.documents import Documents, Unit


class Scripted:
    """`cached`: from the prompts of this salt so far, and this one, to the tokens reused."""

    def __init__(self, cached: Callable[[list[Sequence[Unit]], Sequence[Unit]], int]) -> None:
        self.cost = Cost()
        self.cached = cached
        self.asked: dict[str, list[Sequence[Unit]]] = {}

    async def ask(self, units: Sequence[Unit], salt: str, *, cache: bool = True) -> Asked:
        before = self.asked.setdefault(salt, [])
        found = self.cached(before, units) if cache else 0
        before.append(units)
        return Asked(Answer(()), found, len(units), [])


def cells(cached: Callable[[list[Sequence[Unit]], Sequence[Unit]], int]) -> Cells:
    return Cells(Scripted(cached), Documents(range(1000), 0))


def common(a: Sequence[Unit], b: Sequence[Unit]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def after(writers: int) -> Callable[[list[Sequence[Unit]], Sequence[Unit]], int]:
    """Hits on a prefix that so many other prompts, or this one, have had."""

    def cached(before: list[Sequence[Unit]], units: Sequence[Unit]) -> int:
        if any(list(old) == list(units) for old in before):
            return len(units) - 1
        return 200 if sum(common(old, units) >= 200 for old in before) >= writers else 0

    return cached


@pytest.mark.parametrize("writers", [1, 2, 3])
def test_there_are_as_many_writers_as_a_hit_on_what_others_wrote_takes(writers):
    made = cells(after(writers))
    found = asyncio.run(made.written("boundary", 200, [54]))
    assert all(o.valid for o in found)
    assert [o.cached for o in found] == [200, 226]
    assert found[0].label.count("and") == writers - 1
    twin = asyncio.run(made.written("boundary", 200, [54], twin=True))
    assert [(t.label, t.cached) for t in twin] == [(o.label, o.cached) for o in found]
    # The reader is the same and the writers are not.
    salts = list(made.asker.asked.values())
    first, second = (next(s for s in part if len(s) > writers) for part in (salts[: len(salts) // 2], salts[::-1]))
    assert list(first[writers]) == list(second[writers])
    assert all(list(a) != list(b) for a, b in zip(first[:writers], second[:writers], strict=True))


def test_hits_on_what_the_reader_wrote_itself_are_no_hits_on_others():
    found = asyncio.run(cells(after(99)).written("boundary", 200, [54]))
    assert not any(o.valid for o in found)
    assert "another had written" in found[0].why


def test_more_reused_than_is_shared_is_somebody_elses_request():
    found = asyncio.run(cells(lambda before, units: len(units) - 1).written("writer", 200, [54]))
    assert not any(o.valid for o in found)
    assert "226 tokens were reused where 200 are shared" in found[0].why


def test_a_first_turn_may_miss_but_not_every_one():
    late = cells(lambda before, units: 0 if len(before) < 2 else 90)
    assert all(o.valid for o in asyncio.run(late.turns(100)))
    assert any("a later one did" in note for note in late.notes)
    never = cells(lambda before, units: 0)
    assert not any(o.valid for o in asyncio.run(never.turns(100)))
