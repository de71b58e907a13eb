"""Prompts whose last tokens are replaced by the next one: their ends must not fill a small cache."""

from __future__ import annotations

import numpy as np
import pytest

from statemark.simulate.replay import Replay
from statemark.simulate.traces import TraceRequest
from tests.engine import harness
from tests.toy import ToyExecutor

SLOT = 1 << 40  # pages cost nothing beside it
MARKS = 8


def conversation(rounds: int, *, replaced: int, added: int = 900) -> list[TraceRequest]:
    """Each prompt is the one before without its last `replaced` tokens, and `added` new ones."""
    tokens, found = np.arange(20_000, dtype=np.int32), []
    for number in range(rounds):
        found.append(TraceRequest("s", "", float(number), tokens[:0], tokens, 50, (4_000, len(tokens) - 4)))
        new = np.arange(added, dtype=np.int32) + 1_000_000 + 10_000 * number
        tokens = np.concatenate([tokens[: len(tokens) - replaced], new])
    return found


def computed(requests: list[TraceRequest], policy: str) -> list[int]:
    """Tokens that each request had to compute, with room for MARKS marks."""
    replay = Replay((MARKS + 2) * SLOT - 1, page_bytes=1, slot_bytes=SLOT, policy=policy)
    totals = [0]
    for request in requests:
        replay.run(request)
        replay.cache.check_integrity([])
        totals.append(replay.result.computed)
    return np.diff(totals).tolist()


@pytest.mark.parametrize("replaced", [0, 1, 3, 5, 40, 200])
def test_a_replaced_tail_never_costs_more_than_a_little(replaced: int) -> None:
    """What is new, what was replaced, and at most the way back to the mark near the end; in every round."""
    after = computed(conversation(40, replaced=replaced), "value")[1:]
    assert max(after) <= 900 + 2 * 512


@pytest.mark.parametrize("added", [300, 400, 900])
@pytest.mark.parametrize("replaced", [5, 30, 63])
def test_a_replaced_tail_costs_no_more_than_with_lru(replaced: int, added: int) -> None:
    """However little is new: the ends that it replaces must not keep out its own mark near the end."""
    requests = conversation(40, replaced=replaced, added=added)
    assert sum(computed(requests, "value")) <= sum(computed(requests, "lru"))


@pytest.mark.parametrize("replaced", [5, 40, 300])
def test_ends_that_were_left_behind_are_not_kept(replaced: int) -> None:
    replay = Replay((MARKS + 2) * SLOT - 1, page_bytes=1, slot_bytes=SLOT)
    for request in conversation(30, replaced=replaced):
        replay.run(request)
    standing = [m for m in replay.cache.index.marks() if m.kind in ("replay", "end") and not m.head.superseded]
    assert len({id(m.head) for m in standing}) == 1, "only the last prompt's"


def test_a_branch_far_before_the_end_leaves_the_conversation_alone() -> None:
    base = conversation(2, replaced=0)
    replay = Replay(64 * SLOT, page_bytes=1, slot_bytes=SLOT)
    for request in base:
        replay.run(request)
    side = np.concatenate([base[-1].tokens[:10_000], np.arange(500, dtype=np.int32) + 9_000_000])
    replay.run(TraceRequest("s", "", 9.0, side[:0], side, 50, (4_000, len(side) - 4)))
    ends = [m for m in replay.cache.index.marks() if m.kind == "replay" and m.position == len(base[-1].tokens) - 1]
    assert [m.head.superseded for m in ends] == [False]


def test_a_branch_during_the_answer_leaves_its_end_alone() -> None:
    """Somebody asks the same with other last words while the first answer is being written."""
    engine = harness.engine(ToyExecutor())
    prompt = [i * 7 % 41 for i in range(100)]
    seen: dict[tuple[str, int], harness.Collected] = {}
    engine.add_request(harness.request("first", prompt, max_tokens=30))
    for _ in range(5):
        harness.step(engine, seen)
    engine.add_request(harness.request("branch", [*prompt[:95], 40, 39, 38], max_tokens=2))
    harness.drain(engine, seen)
    ends = [m for m in engine.cache.index.marks() if m.kind == "end"]
    assert {m.position: m.head.superseded for m in ends} == {129: False, 99: False}


@pytest.mark.parametrize("filled", [20, 60, 300])
def test_a_shared_document_is_reused_in_a_full_cache(filled: int) -> None:
    """Ends of prompts that nobody asks again must not keep out the mark where requests part."""
    replay = Replay(24 * SLOT, page_bytes=1, slot_bytes=SLOT)
    draw = np.random.default_rng(filled)

    def computed(*parts: np.ndarray) -> int:
        tokens = np.concatenate([*parts]).astype(np.int32)
        before = replay.result.computed
        replay.run(TraceRequest("s", "", 0.0, tokens[:0], tokens, 50, (len(tokens) - 4,)))
        return replay.result.computed - before

    for _ in range(filled):
        one_off = draw.integers(0, 1 << 29, 700)
        for _ in range(3):
            computed(one_off, draw.integers(0, 1 << 29, 40))
    document = draw.integers(0, 1 << 29, 5_000)
    taken = [computed(document, draw.integers(0, 1 << 29, 60)) for _ in range(12)]
    assert max(taken[2:]) <= 60, taken
    found = replay.cache.find(replay.cache.index.chain("s"), np.concatenate([document, np.arange(9)]).astype(np.int32))
    assert found.position == 5_000
