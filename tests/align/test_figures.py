"""The measured figures that pure computation can reproduce: steps, kept states, stalls, walk-throughs, hits."""

from __future__ import annotations

import pytest

from statemark.align.frame import Frame, uniform_frame
from statemark.align.groups import Role
from statemark.align.oracle import CacheGroup, Job, Limits, Prompt, World
from statemark.align.rules import make_rule
from tests.align.histories import run_offers

B = 384
# Eight prompts from one token below a block to ten blocks, exact multiples included.
EIGHT = (B - 1, B, B + 1, 2 * B, 2 * B + 100, 5 * B, 5 * B + 7, 10 * B)


def world(rule: str, frame: Frame, limits: Limits | None = None, *, dropped: bool = False) -> World:
    grid = frame.grid.tokens
    groups = (CacheGroup(Role.ATTENTION, grid, None, dropped), CacheGroup(Role.STATE, grid))
    return World(frame, groups, make_rule(rule, frame), limits)


def ask(place: World, name: str, *parts: tuple[str, int], outputs: int = 1) -> Job:
    job = place.add(Job(name, Prompt(parts), outputs=outputs))
    place.run()
    return job


def alone(rule: str, frame: Frame, prompt: int) -> tuple[Job, World]:
    place = world(rule, frame)
    return ask(place, "r", ("p", prompt)), place


@pytest.mark.parametrize(
    ("rule", "steps"),
    [("exact", (30, 30, 30, 30)), ("vllm-0.32", (30, 21, 15, 14)), ("fast", (26, 19, 15, 14))],
)
def test_steps_over_eight_prompts(rule: str, steps: tuple[int, ...]) -> None:
    budgets = (512, 1024, 2048, 8192)
    assert tuple(sum(len(alone(rule, uniform_frame(B, t), p)[0].ends) for p in EIGHT) for t in budgets) == steps


@pytest.mark.parametrize(
    ("rule", "kept"),
    [("exact", (26, 26, 26, 26)), ("vllm-0.32", (26, 17, 11, 10)), ("fast", (26, 26, 26, 26))],
)
def test_kept_states_under_dense_retention(rule: str, kept: tuple[int, ...]) -> None:
    total = []
    for budget in (512, 1024, 2048, 8192):
        runs = [alone(rule, uniform_frame(B, budget, retention=None), p)[1] for p in EIGHT]
        assert not any(w.stale for w in runs)
        total.append(sum(len(w.cache.states) for w in runs))
    assert tuple(total) == kept


@pytest.mark.parametrize(
    ("block", "budget", "stock", "exact", "fast"),
    [
        (1152, 2048, 200, 200, 113),
        (1152, 3072, 101, 200, 76),
        (1152, 4096, 68, 200, 57),
        (1152, 6144, 41, 200, 39),
        (1152, 8192, 30, 200, 29),
        (544, 2048, 142, 423, 114),
        (544, 8192, 30, 423, 30),
        (1568, 2048, 147, 147, 113),
        (3136, 2048, 147, 147, 113),
        (1600, 2048, 144, 144, 113),
    ],
)
def test_steps_of_a_prompt_of_230k(block: int, budget: int, stock: int, exact: int, fast: int) -> None:
    frame = uniform_frame(block, budget)
    found = [run_offers(r, frame, 230_000, [budget]) for r in ("vllm-0.32", "exact", "fast")]
    assert [f and f.steps for f in found] == [stock, exact, fast]


def test_one_block_of_budget_and_eight_decodes() -> None:
    """Stock stalls until the decodes end; progress in every step takes 21 steps (two a block, and the last token)."""

    def run(rule: str) -> tuple[int, int]:
        place = world(rule, uniform_frame(B, B))
        for n in range(8):
            place.add(Job(f"decode {n}", Prompt([(f"d{n}", 4)]), outputs=197))
        place.step()
        job = ask(place, "long", ("p", 10 * B + 1))
        return job.starved, len(job.ends)

    assert run("vllm-0.32") == (196, 11)
    assert run("exact") == (0, 21)
    assert run("fast")[0] == 0


def test_walk_through_of_a_prompt_of_5000() -> None:
    place = world("vllm-0.32", uniform_frame(B, 2048))
    first = ask(place, "1", ("p", 5000))
    assert first.ends == [1920, 3840, 4992, 5000]
    assert [e.position for e in place.cache.states.values()] == [4992]
    assert ask(place, "2", ("p", 5000)).hits == [4992]
    longer = ask(place, "3", ("p", 5000), ("q", 500))
    assert (longer.hits, longer.ends) == ([4992], [5376, 5500])
    assert ask(place, "4", ("p", 5000), ("q", 500)).hits == [5376]


def test_fine_hits_stop_at_the_tail() -> None:
    assert alone("vllm-0.32", uniform_frame(B, 2048, match_unit=16), 5500)[0].ends == [1920, 3840, 5376, 5488, 5500]


@pytest.mark.parametrize(
    ("prompt", "with_drop", "without"),
    [(1601, 0, 1600), (3199, 0, 1600), (3200, 1600, 1600), (3201, 1600, 3200), (5000, 3200, 4800)],
)
def test_reask_with_a_drafter_gives_back_a_block(prompt: int, with_drop: int, without: int) -> None:
    hits = []
    for drop in (True, False):
        place = world("vllm-0.32", uniform_frame(1600, 8192, drop=drop, lookahead=int(drop)), dropped=drop)
        ask(place, "1", ("p", prompt), outputs=2)
        hits.append(ask(place, "2", ("p", prompt)).hits[0])
    assert hits == [with_drop, without]


def test_junction_hits_from_the_third_request_on() -> None:
    for rule in ("vllm-0.32", "exact", "fast"):
        place = world(rule, uniform_frame(B, 2048))
        hits = [ask(place, str(n), ("shared", 3000), (f"own {n}", 1000)).hits[0] for n in range(4)]
        assert hits == [0, 0, 2688, 2688], rule


@pytest.mark.parametrize("rule", ["exact", "fast"])
def test_hits_follow_the_floor_of_p_minus_1(rule: str) -> None:
    """From one block to 900 thousand tokens, exact multiples included."""
    for prompt in (1568, 1569, 3136, 15_680, 31_361, 262_144, 900_032):
        frame = uniform_frame(1568, 8192)
        place = world(rule, frame)
        ask(place, "1", ("p", prompt))
        assert ask(place, "2", ("p", prompt)).hits == [(prompt - 1) // 1568 * 1568]


def test_vllm_cpu_on_the_agent_workload_reuses_32000() -> None:
    """3 sessions of 4 turns, 3,000 shared tokens, 150 new and 16 kept ones a turn, interleaved, on blocks of 640: on a
    live server, 32,000 of 40,788 prompt tokens came from the cache."""
    place = world("vllm-0.32", uniform_frame(640, 2048))
    prompts: dict[int, list[tuple[str, int]]] = {s: [("system", 3000)] for s in range(3)}
    total = reused = 0
    for turn in range(4):
        for session in range(3):
            prompts[session].append((f"user {session} {turn}", 150))
            job = ask(place, f"{session}.{turn}", *prompts[session], outputs=32)
            total += len(job.prompt)
            reused += job.hits[0]
            prompts[session].append((f"kept {session} {turn}", 16))
    assert (total, reused) == (40_788, 32_000)
