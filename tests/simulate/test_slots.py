"""llama.cpp's slots and checkpoints: where a prompt resumes, what is kept, what is put aside, and steps in company."""

from __future__ import annotations

import pytest

from statemark.errors import ConfigurationError
from statemark.simulate.cost import Cost
from statemark.simulate.server import Outcome
from statemark.simulate.slot_server import SlotServer
from statemark.simulate.slots import SlotCache, SlotFlags, parse_slot_flags
from statemark.simulate.workload import Names, Request

STATE = 1 << 20
TOKEN = 512


class Asks:
    """Requests by named parts; an answer is named after its request."""

    def __init__(self) -> None:
        self.names = Names()
        self.made: list[Request] = []

    def add(self, parts: list[tuple[str, int]], output: int = 5, at: float | None = None, **more: object) -> Request:
        nodes, ends = self.names.spans(parts)
        number = len(self.made)
        answer = self.names.child(nodes[-1], ends[-1], f"answer {number}")
        request = Request(
            number, float(number * 1000 if at is None else at), nodes, ends[-1], output, answer, ends=ends, **more
        )  # type: ignore[arg-type]
        self.made.append(request)
        return request


def served(asks: Asks, flags: SlotFlags | None = None, batch: int = 2048) -> tuple[Outcome, SlotCache]:
    cache = SlotCache(flags or SlotFlags(), batch, TOKEN, STATE, 8192)
    return SlotServer(cache, Cost(), batch, 8192).run(asks.made), cache


def test_a_chat_goes_on_from_where_its_slot_stands() -> None:
    asks = Asks()
    asks.add([("a", 1000)])
    asks.add([("a", 1000), ("answer 0", 5), ("b", 100)])
    outcome, _ = served(asks)
    assert outcome.hits == {0: 0, 1: 1004}  # the last token of an answer has never been run
    assert outcome.computed == 1000 + 1105 - 1004


def test_a_prompt_that_parts_resumes_at_a_checkpoint_near_the_old_ones_end() -> None:
    """A cold prompt is kept four tokens before its end, and a micro-batch before that."""
    asks = Asks()
    asks.add([("a", 1500)])
    asks.add([("a", 1500)])  # the same again: the state after all of it is of no use, a token must be run
    asks.add([("a", 1498), ("b", 50)])
    asks.add([("a", 1400), ("b", 50)])
    asks.add([("a", 900), ("c", 50)])
    outcome, _ = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=0))
    assert [outcome.hits[n] for n in range(5)] == [0, 1496, 1496, 984, 0]


def test_without_checkpoints_only_what_a_slot_holds_is_of_use() -> None:
    asks = Asks()
    asks.add([("a", 1500)])
    asks.add([("a", 1498), ("b", 50)])
    outcome, _ = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=0, ctx_checkpoints=0))
    assert outcome.hits == {0: 0, 1: 0}


def test_the_oldest_checkpoint_goes_where_there_are_too_many() -> None:
    asks = Asks()
    grown = [("a", 1000)]
    for number in range(4):
        asks.add(list(grown))
        grown += [(f"answer {number}", 5), (f"own {number}", 600)]
    asks.add([("a", 990), ("b", 100)])
    roomy, _ = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=0))
    tight, cache = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=0, ctx_checkpoints=2))
    assert roomy.hits[4] == 1000 - 4 - 512
    assert tight.hits[4] == 0
    assert len(cache.slots[0].text.checkpoints) == 2  # type: ignore[union-attr]


def test_the_beginning_of_a_message_is_kept() -> None:
    asks = Asks()
    asks.add([("system", 700), ("question", 900)], turns=(700,))
    asks.add([("system", 700), ("other question", 900)], turns=(700,))
    outcome, _ = served(asks)
    assert outcome.hits == {0: 0, 1: 700}


def test_prompts_wait_in_host_memory_and_come_back_where_they_serve() -> None:
    asks = Asks()
    asks.add([("a", 2000)])
    asks.add([("b", 2000)])
    asks.add([("a", 2000), ("answer 0", 5), ("c", 10)])
    with_memory, _ = served(asks, SlotFlags(parallel=1, unified=False))
    without, _ = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=0))
    tight, cache = served(asks, SlotFlags(parallel=1, unified=False, cache_ram=3))
    assert with_memory.hits[2] == 2004
    assert without.hits[2] == 0
    assert tight.hits[2] == 0  # three states and the keys are more than 3 MiB
    assert not cache.aside


def test_slots_of_their_own_are_chosen_by_likeness_and_then_by_age() -> None:
    asks = Asks()
    for name in ("a", "b", "c"):
        asks.add([(name, 600)])
    asks.add([("a", 600), ("answer 0", 5), ("more", 50)])
    asks.add([("d", 600)])  # takes the place of b
    asks.add([("b", 600), ("answer 1", 5), ("more", 50)])
    outcome, cache = served(asks, SlotFlags(parallel=3, unified=False, cache_ram=0))
    assert [outcome.hits[n] for n in range(6)] == [0, 0, 0, 604, 0, 0]
    assert sorted(s.text.request.number for s in cache.slots if s.text) == [3, 4, 5]


def test_more_requests_than_slots_wait_their_turn() -> None:
    asks = Asks()
    for number in range(6):
        asks.add([(f"p{number}", 500)], output=20, at=0)
    outcome, cache = served(asks, SlotFlags(parallel=2, unified=False))
    assert set(outcome.whole) == set(range(6))
    assert outcome.computed == 6 * 500
    assert outcome.ttft[0] < outcome.ttft[2] < outcome.ttft[4]
    assert not any(s.busy for s in cache.slots)


def test_steps_taken_together_are_steps_taken_one_by_one() -> None:
    """An arrival in the middle of an answer is looked at in the step after it, whatever the answer's length."""
    cost = Cost(step=1.0, token=0, request=0, context=0)
    asks = Asks()
    asks.add([("a", 100)], output=50, at=0)
    asks.add([("b", 100)], output=2, at=10.5)
    cache = SlotCache(SlotFlags(), 2048, TOKEN, STATE, 8192)
    outcome = SlotServer(cache, cost, 2048, 8192).run(asks.made)
    assert outcome.whole[0] == 51  # two chunks of the prompt, since its last four tokens run alone, and 49 decodes
    assert outcome.ttft[1] == pytest.approx(0.5 + 2)
    assert outcome.steps == 51


def test_flags_as_text() -> None:
    assert parse_slot_flags("ctx-checkpoints=8") == SlotFlags(ctx_checkpoints=8)
    assert parse_slot_flags("parallel=2,cache-ram=-1") == SlotFlags(parallel=2, unified=False, cache_ram=-1)
    assert parse_slot_flags("parallel=2,unified=1") == SlotFlags(parallel=2, unified=True)
    for text in ("parallel=0", "slots=3", "ubatch=1.5", "cache-ram=x", "unified=2", "", "ctx-checkpoints=-1"):
        with pytest.raises(ConfigurationError, match="no setting of llama-server"):
            parse_slot_flags(text)
