"""Public reports of faults, each with the right value. Named after the cases; the wrong values are vLLM's, where the
fault is still in 0.32, and the oracle must show them too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from statemark.align.positions import Prefill, replay_point
from statemark.align.rules import make_rule
from statemark.align.units import ConfigMinimum
from tests.align.histories import History, Request, play, reask, run_offers, server
from tests.align.test_figures import ask, uniform_frame, world

OURS = ["exact", "fast"]
BOTH = pytest.mark.parametrize("rule", OURS)


@BOTH
def test_g1b_every_reask_hits_whatever_small_group_there_is(rule: str) -> None:
    """A ring of 4 beside states on 1568: the ring is not cached, so it may not become the grid."""
    machine = server(1568, 2048, ring=4)
    assert machine.frame.config_minimum.tokens == 1568
    for prompt in (15_680, 262_144):
        request = Request((("p", prompt),))
        hit, _ = reask(play(History(machine, (request,)), rule), request, rule)
        assert hit == (prompt - 1) // 1568 * 1568


def test_g1b_the_wrong_tree_kept_7_of_10_and_127_of_167() -> None:
    """With the ring of 4 as the grid and every boundary kept: holes, and state@2048 filed as 3136."""
    for prompt, present, due in ((15_680, 7, 10), (262_144, 127, 167)):
        frame = uniform_frame(1568, 2048, retention=None)
        wrong = world("vllm-0.32", replace(frame, config_minimum=ConfigMinimum(4)))
        ask(wrong, "r", ("p", prompt))
        assert len(wrong.cache.states) == present
        assert (wrong.stale[0].position, wrong.stale[0].holds) == (3136, 2048)
        assert len(run_states("exact", frame, prompt)) == len(run_states("fast", frame, prompt)) == due


def run_states(rule: str, frame, prompt: int) -> list[int]:  # type: ignore[no-untyped-def]
    place = world(rule, frame)
    ask(place, "r", ("p", prompt))
    assert not place.stale
    return sorted(e.position for e in place.cache.states.values())


def test_g1c_five_blocks_of_1648() -> None:
    frame = uniform_frame(1648, 8240, retention=None)
    # One chunk to the replay point, one to the end: the end's own state is there because 8,240 is a multiple.
    assert run_states("vllm-0.32", frame, 8240) == [6592, 8240]
    assert run_states("exact", frame, 8240) == [1648, 3296, 4944, 6592, 8240]


def test_g1a_and_g2_units_that_meet_nowhere() -> None:
    """816 and 1648 meet at 84,048 only. The grid is the recurrent groups' own, and so is the index of a state."""
    machine = server(1648, 2048, page=816)
    assert machine.frame.scheduler_block.tokens == 84_048
    grid = machine.frame.grid
    assert (grid.tokens, machine.frame.config_minimum.tokens) == (1648, 816)
    for computed, block, column in ((100_096, 2176, 45), (134_400, 4480, 29)):
        assert (computed - 1) // server(block, 8192).frame.grid.tokens == column


def test_g1d_a_page_of_64_beside_states_on_800_with_mtp() -> None:
    machine = server(800, 2048, window_page=64, drop=True, lookahead=1)
    request = Request((("p", 2501),), outputs=3)
    for rule in OURS:
        outcome = play(History(machine, (request,)), rule)
        assert outcome.problems == []
    assert replay_point(2501, 800, True) == 1600


@pytest.mark.parametrize(
    ("block", "prompt", "hit"),
    [(528, 480, 0), (528, 552, 528), (528, 979, 528), (3584, 2015, 0), (3584, 8015, 7168), (3584, 47_074, 46_592)],
)
def test_g5_prompts_shorter_than_a_block_never_hit(block: int, prompt: int, hit: int) -> None:
    """Whole-block hits, as reported. A match unit below the grid gives almost all of it back."""
    for rule in ("vllm-0.32", *OURS):
        place = world(rule, uniform_frame(block, 8192))
        ask(place, "1", ("p", prompt))
        assert ask(place, "2", ("p", prompt)).hits == [hit]
        fine = world(rule, uniform_frame(block, 8192, match_unit=16))
        ask(fine, "1", ("p", prompt))
        assert ask(fine, "2", ("p", prompt)).hits == [(prompt - 1) // 16 * 16]


def test_s1_tokens_per_step_are_the_floor() -> None:
    """The report's own 5184 and 6912 at 6144 and 8192 don't follow from the rule: 5760 and 8064 do."""
    for budget, per_step in ((2048, 1152), (3072, 2304), (4096, 3456), (6144, 5760), (8192, 8064)):
        rule = make_rule("vllm-0.32", uniform_frame(1152, budget))
        assert rule.cut(Prefill(230_000, 230_000), 0, budget) == per_step
        assert make_rule("fast", uniform_frame(1152, budget)).cut(Prefill(230_000, 230_000), 0, budget) == budget


def test_s3_states_only_at_chunk_ends_make_siblings_miss() -> None:
    frame = uniform_frame(1600, 16_384, match_unit=16)
    place = world("vllm-0.32", frame)
    assert ask(place, "1", ("a", 4278)).ends == [3200, 4272, 4278]  # 4277 floors to 3200 and to 4272
    for rule in ("exact", "fast"):  # with every boundary kept, a sibling that shares 2,000 hits 1600
        dense = world(rule, replace(frame, retention=None))
        ask(dense, "1", ("s", 2000), ("a", 2278))
        assert ask(dense, "2", ("s", 2000), ("b", 2278)).hits == [1600]
        assert ask(dense, "3", ("s", 1616), ("c", 2278)).hits == [1600]


def test_s4_carves_of_three_siblings() -> None:
    place = world("vllm-0.32", uniform_frame(1056, 16_384))
    carves = []
    for n in range(3):
        job = ask(place, str(n), ("shared", 6000), (f"own {n}", 2000))
        carves.append((job.hits[0], [b - a for a, b in zip([job.hits[0], *job.ends], job.ends, strict=False)]))
    assert carves == [(0, [7392, 608]), (0, [5280, 2112, 608]), (5280, [2112, 608])]


@BOTH
def test_v1_an_offer_below_a_block_makes_progress(rule: str) -> None:
    frame = uniform_frame(1568, 2048)
    cutter = make_rule(rule, frame)
    for start in (0, 1568, 700):
        view = Prefill(9000, 9000)
        assert all(cutter.cut(view, start, offer) > 0 for offer in (1, 63, 64, 1500))
    assert make_rule("vllm-0.32", frame).cut(Prefill(9000, 9000), 0, 1500) == 0


@BOTH
def test_v2_an_encoder_cap_off_the_grid_is_realigned(rule: str) -> None:
    """Block 8, two items that don't fit together: the plan may end at 5 and then goes on to a boundary."""
    machine = server(8, 64, kernel_chunk=1)
    outcome = play(History(machine, (Request((("p", 21),), trims=(5,)),)), rule)
    assert outcome.problems == []
    assert outcome.jobs[0].ends[0] == 5
    assert outcome.jobs[0].done


@BOTH
def test_v5_a_block_above_the_budget_runs(rule: str) -> None:
    run = run_offers(rule, uniform_frame(4480, 2048), 20_000, [2048])
    assert run is not None
    assert run.ends[-1] == 20_000


@BOTH
def test_l1_shared_1500_of_2100_and_the_ladder(rule: str) -> None:
    """Junctions: from the third on. Every boundary kept: from the second on."""
    sparse = world(rule, uniform_frame(528, 8192))
    dense = world(rule, uniform_frame(528, 8192, retention=None))
    hits = [[ask(w, str(n), ("s", 1500), (f"o{n}", 700)).hits[0] for n in range(4)] for w in (sparse, dense)]
    assert hits == [[0, 0, 1056, 1056], [0, 1056, 1056, 1056]]


@BOTH
def test_l2_exact_multiples_keep_the_boundary_below(rule: str) -> None:
    for prompt, hit in ((32, 16), (48, 32), (31, 16), (33, 32)):
        place = world(rule, uniform_frame(16, 512))
        ask(place, "1", ("p", prompt))
        assert ask(place, "2", ("p", prompt)).hits == [hit]


@BOTH
def test_l4_the_first_divergent_request_leaves_a_state_at_the_split(rule: str) -> None:
    place = world(rule, uniform_frame(64, 8192))
    ask(place, "1", ("p", 6476), ("s1", 40))
    ask(place, "2", ("p", 6476), ("s2", 376))
    assert ask(place, "3", ("p", 6476), ("s3", 1296)).hits == [6464]


@BOTH
def test_l8_a_match_unit_alone_does_not_place_states(rule: str) -> None:
    place = world(rule, uniform_frame(1600, 8192, match_unit=16))
    hits = [ask(place, str(n), ("shared", 560), (f"own {n}", 1386)).hits[0] for n in range(3)]
    assert hits == [0, 0, 0]  # 560 is inside a block: states are kept at boundaries and prompt ends only
    whole = world(rule, uniform_frame(16, 8192))
    assert [ask(whole, str(n), ("shared", 560), (f"own {n}", 1386)).hits[0] for n in range(3)] == [0, 0, 560]


@pytest.mark.parametrize("rule", ["vllm-0.32", *OURS])
def test_p1_an_unaligned_first_chunk_poisons_nothing(rule: str) -> None:
    """Block 1600, prompt 2,002, a shared budget leaves 364 tokens for the first chunk, a drafter gives back a block."""
    machine = server(1600, 8192, drop=True, lookahead=1)
    outcome = play(History(machine, (Request((("p", 2002),), outputs=4, trims=(364,)),)), rule)
    assert not outcome.world.stale


@BOTH
def test_d1_with_a_drafter_the_first_repeat_hits(rule: str) -> None:
    for prompt, hit in ((11_910, 9600), (4481, 1600)):
        place = world(rule, uniform_frame(1600, 8192, drop=True, lookahead=1), dropped=True)
        ask(place, "1", ("p", prompt), outputs=2)
        assert ask(place, "2", ("p", prompt)).hits == [hit]
    kept = world(rule, uniform_frame(1600, 8192))
    ask(kept, "1", ("p", 4481))
    assert ask(kept, "2", ("p", 4481)).hits == [3200]


@BOTH
def test_d3_built_in_mtp_adds_no_group(rule: str) -> None:
    place = world(rule, uniform_frame(3200, 8192))
    ask(place, "1", ("p", 4137))
    assert ask(place, "2", ("p", 4137)).hits == [3200]


@BOTH
def test_d5_a_state_is_only_where_a_chunk_ended(rule: str) -> None:
    """Block 1616, prompt 4,538 with MTP: the first two boundaries are kept or not, but never one for the other."""
    place = world(rule, uniform_frame(1616, 16_384, drop=True, lookahead=1, retention=None), dropped=True)
    ask(place, "1", ("p", 4538), outputs=3)
    assert not place.stale
    assert {e.position for e in place.cache.states.values()} == {1616, 3232}


def test_e2_sparse_and_dense_retention_of_the_same_prompt() -> None:
    """Block 1648, 7,292 tokens; block 1600, 6,400 tokens: the second send hits in both, and deeper than reported."""
    for block, prompt, hit in ((1648, 7292, 6592), (1600, 6400, 4800)):
        for rule in OURS:
            place = world(rule, uniform_frame(block, 8192))
            ask(place, "1", ("p", prompt))
            assert ask(place, "2", ("p", prompt)).hits == [hit]


def test_n1_chunks_of_a_shared_document_depend_on_who_wrote_it() -> None:
    """A of 3,169 and B of 3,227 tokens with MTP on blocks of 1600: stock computes B in other chunks after A, `exact`
    computes the boundary and what follows in the same chunks."""
    frame = uniform_frame(1600, 8192, drop=True, lookahead=1)
    cold, after = {}, {}
    for rule in ("vllm-0.32", "exact"):
        place = world(rule, frame, dropped=True)
        cold[rule] = ask(place, "B", ("doc", 3169), ("b", 58), outputs=2).ends
        other = world(rule, frame, dropped=True)
        wrote = ask(other, "A", ("doc", 3169), outputs=2).ends
        after[rule] = (wrote, ask(other, "B", ("doc", 3169), ("b", 58), outputs=2).ends)
    assert cold["vllm-0.32"] == [1600, 3227]
    assert after["vllm-0.32"][0] == [3169]  # A ran through the boundary that B's cold run stopped at
    assert cold["exact"] == [1600, 3200, 3227]
    assert after["exact"] == ([1600, 3169], [1600, 3200, 3227])
