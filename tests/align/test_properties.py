"""What holds for the rules `exact` and `fast` whatever the blocks, budgets, mates, preemptions and drafts."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from statemark.align.positions import Kept, Prefill, replay_spots
from statemark.align.rules import make_rule
from tests.align.histories import (
    History,
    Outcome,
    Request,
    Server,
    alone,
    histories,
    kernel_cuts,
    play,
    reask,
    run_offers,
    server,
    servers,
)


def examples(count: int) -> int:
    """How many histories to try: ALIGN_EXAMPLES=20 makes it twenty times as many."""
    return count * int(os.environ.get("ALIGN_EXAMPLES", "1"))


OURS = pytest.mark.parametrize("rule", ["exact", "fast"])


@OURS
@settings(max_examples=examples(300), deadline=None)
@given(history=histories())
def test_no_stale_entry_and_progress_in_every_step(rule: str, history: History) -> None:
    assert play(history, rule).problems == []


@OURS
@settings(max_examples=examples(200), deadline=None)
@given(history=histories(rough=False))
def test_reask_hits_the_ideal(rule: str, history: History) -> None:
    outcome = play(history, rule)
    frame = history.server.frame
    for request in history.requests:
        if request.outputs <= frame.lookahead:
            continue  # a multi-module drafter's last pages are final only some tokens later
        hit, ideal = reask(outcome, request, rule)
        assert hit == ideal


@OURS
@settings(max_examples=examples(200), deadline=None)
@given(machine=servers(), data=st.data())
def test_reask_without_drop_hits_the_floor_of_p_minus_1(rule: str, machine: Server, data: st.DataObject) -> None:
    assume(not machine.frame.drop)
    prompt = data.draw(st.integers(1, min(8 * machine.frame.scheduler_block.tokens, 24 * machine.frame.grid.tokens)))
    request = Request((("p", prompt),))
    hit, _ = reask(play(History(machine, (request,)), rule), request, rule)
    assert hit == machine.frame.hit_unit.floor(prompt - 1)


@settings(max_examples=examples(300), deadline=None)
@given(machine=servers(), data=st.data())
def test_exact_cuts_the_kernel_where_the_prompt_alone_does(machine: Server, data: st.DataObject) -> None:
    """Whatever is left in each step, as long as it is a kernel chunk or reaches the next stop."""
    frame = machine.frame
    grid, chunk = frame.grid.tokens, frame.kernel_chunk.tokens
    assume(chunk <= frame.offer_limit)
    prompt = data.draw(st.integers(1, 6 * grid))
    offers = data.draw(st.lists(st.integers(chunk, 3 * grid + chunk), min_size=1, max_size=6))
    generous = [10**9]
    free = replace(frame, step_limit=10**9)
    lonely = run_offers("exact", free, prompt, generous)
    shared = run_offers("exact", frame, prompt, offers)
    assert lonely is not None
    assert shared is not None
    assert kernel_cuts(_spans(shared.ends), chunk) == kernel_cuts(_spans(lonely.ends), chunk)


def _spans(ends: list[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends], ends, strict=False))


@settings(max_examples=examples(200), deadline=None)
@given(history=histories(rough=False))
def test_exact_ends_do_not_depend_on_company(history: History) -> None:
    """Requests that came in together, of which nothing was cached before: as the kernel sees them, their chunks are
    those of each prompt alone, while every step leaves them a kernel chunk or the way to the next stop."""
    frame = history.server.frame
    chunk = frame.kernel_chunk.tokens
    outcome = play(history, "exact")
    for job, request in zip(outcome.jobs, history.requests, strict=True):
        lonely = alone(history.server, request, "exact")
        spans, enough = _prefill(outcome, job.name, len(job.prompt), chunk)
        own, enough_alone = _prefill(lonely, "r0", len(job.prompt), chunk)
        first = job.hits[0]
        if not frame.kernel_chunk.on(first - frame.grid.floor(first)):
            continue  # a match unit off the kernel's chunks lets a hit begin where no prompt alone has a cut
        if enough and enough_alone:
            assert kernel_cuts(spans, chunk) == {c for c in kernel_cuts(own, chunk) if c > first}


def _prefill(outcome: Outcome, name: str, prompt: int, chunk: int) -> tuple[list[tuple[int, int]], bool]:
    """(chunks of a request's prompt, whether each of them had a kernel chunk's worth on offer)."""
    spans, enough = [], True
    for step in outcome.world.steps:
        for ran in step.chunks:
            if ran.job == name and ran.start < prompt:
                spans.append((ran.start, ran.end))
                enough = enough and (ran.offer >= chunk or ran.offer > ran.count)
    return spans, enough


@settings(max_examples=examples(300), deadline=None)
@given(machine=servers(uniform=True), data=st.data())
def test_fast_is_never_behind_stock(machine: Server, data: st.DataObject) -> None:
    """One block for all groups, default retention: whatever each step offers, `fast` ends no later.

    With a drafter's dropped block, or kernels that export states, stock may idle for a chunk that is large enough to
    need one stop less; with offers that don't change it doesn't gain by that.
    """
    frame = replace(machine.frame, retention=0)
    prompt = data.draw(st.integers(1, 8 * frame.grid.tokens))
    most = 1 if frame.drop or frame.checkpoint_step is not None else 6
    offers = data.draw(st.lists(st.integers(1, frame.step_limit), min_size=1, max_size=most))
    fast = run_offers("fast", frame, prompt, offers)
    stock = run_offers("vllm-0.32", frame, prompt, offers)
    assert fast is not None
    assert stock is None or fast.steps <= stock.steps


@settings(max_examples=examples(300), deadline=None)
@given(machine=servers(), data=st.data())
def test_fast_pays_at_most_for_the_stops_that_stock_leaves_out(machine: Server, data: st.DataObject) -> None:
    """Groups that differ make stock stop in the wrong unit. A stop in the right one costs a step, and buys the hit."""
    frame = replace(machine.frame, retention=0)
    prompt = data.draw(st.integers(1, 8 * frame.grid.tokens))
    offer = [data.draw(st.integers(1, frame.step_limit))]
    fast = run_offers("fast", frame, prompt, offer)
    stock = run_offers("vllm-0.32", frame, prompt, offer)
    assert fast is not None
    if stock is not None:
        kept = Kept(frame, prompt)
        due = replay_spots(frame, prompt) | set(filter(kept.binds, range(0, prompt, frame.grid.tokens)))
        assert fast.steps <= stock.steps + len(due - set(stock.ends))


@settings(max_examples=examples(200), deadline=None)
@given(machine=servers(), data=st.data())
def test_rules_stay_within_the_offer(machine: Server, data: st.DataObject) -> None:
    frame = machine.frame
    prompt = data.draw(st.integers(1, 8 * frame.grid.tokens))
    known = prompt + data.draw(st.integers(0, 5))
    start = data.draw(st.integers(0, known - 1))
    offer = data.draw(st.integers(1, known - start))
    junction = data.draw(st.sampled_from([0, min(start + 3, prompt)]))
    for rule in ("exact", "fast"):
        assert 1 <= make_rule(rule, frame).cut(Prefill(prompt, known, junction), start, offer) <= offer


@pytest.mark.parametrize("arrives", [1, 2, 3])
def test_a_state_that_moves_to_a_copy_is_hit_a_step_later(arrives: int) -> None:
    """A prompt of 45 ends its second chunk at 40, off the grid, and runs on in that slot: the entry moves to a copy
    that the third step fills, and nobody hits it before the fourth."""
    first = Request((("stem", 45),), outputs=6)
    then = Request((("stem", 45), ("own", 7)), outputs=1, arrives=arrives)
    outcome = play(History(server(32, 100, match_unit=8), (first, then)), "vllm-0.32")
    found = [(n, c.start) for n, s in enumerate(outcome.world.steps) for c in s.chunks if c.admitted and c.job == "r1"]
    assert found == [(3, 40)]
