"""On a real vLLM for CPUs: what is reused, in how many steps, which states are kept, and whether an answer depends on
who asked before, by digests of log-probabilities.

One file, so that each engine is started once. The weights keep what they have read for hundreds of tokens, and the
block is no multiple of the recurrent kernel's chunk: then the numbers depend on where a prompt is cut, as with large
models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
from tests.vllm.live.experiments import BUDGETS
from tests.vllm.live.runs import on_engine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
STOCK = "vllm-0.32"
RULES = ("exact", "fast")
AMX = " amx_tile " in Path("/proc/cpuinfo").read_text()


@pytest.fixture(params=["qwen3-next", "qwen3.5"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cells(model: str, experiment: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = on_engine(model)[experiment]["cells"]
    return found


def test_the_plugin_is_active_and_says_so(model: str) -> None:
    found = on_engine(model)
    assert found["status"] == "active"
    assert "statemark: prefills are cut by the rule 'exact' (chosen by the default)" in found["log"]
    assert found["log"].count("minimum-prefix") == 1  # the check, once an engine


def test_a_re_ask_reuses_all_that_it_can(model: str) -> None:
    """Prompts of B-1 to 10B tokens at budgets of 512 to 8192, under both rules."""
    ours = [c for c in cells(model, "reuse") if c["rule"] in RULES]
    assert len(ours) == 2 * 4 * 8
    assert [c["cached"] for c in ours] == [c["ideal"] for c in ours]


def test_fast_never_takes_more_steps_than_vllm_itself(model: str) -> None:
    by_rule = {(c["rule"], c["budget"], c["length"]): c["steps"] for c in cells(model, "reuse")}
    for (rule, budget, length), steps in by_rule.items():
        if rule == "fast":
            assert steps <= by_rule["vllm-0.32", budget, length]


def test_exact_takes_the_same_steps_at_every_budget(model: str) -> None:
    block = on_engine(model)["reuse"]["block"]
    for cell in cells(model, "reuse"):
        if cell["rule"] == "exact" and cell["budget"] >= block:
            assert cell["steps"] == -(-cell["length"] // block)


def test_every_boundary_is_kept_where_all_are_wanted() -> None:
    found = on_engine("qwen3.5")["dense"]
    for rule in RULES:
        assert found["rules"][rule]["kept"] == found["boundaries"]
        assert found["rules"][rule]["reused"] == list(range(1, 10))
    stock = found["rules"]["vllm-0.32"]
    assert stock["kept"] < found["boundaries"]  # interior ones are null at this budget
    assert stock["reused"] != list(range(1, 10))


@pytest.fixture(params=["qwen3.5", "qwen3.5-mtp"])
def pairs(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    found = on_engine(request.param)
    assert found["status"] == "active"
    drafted = request.param.endswith("mtp")
    assert (found["outputs"]["drafts"] > 0) == drafted
    made: list[dict[str, Any]] = found["outputs"]["cells"]
    assert all(c["unstable"] == 0 for c in made)  # cold runs agree with each other, or nothing could be told
    assert all(c["reused"] > 0 for c in made)
    assert all((c["accepted"] > 0) == drafted for c in made)
    return made


def differing(made: list[dict[str, Any]], rule: str) -> dict[tuple[int, str], int]:
    return {(c["budget"], c["company"]): c["differ"] for c in made if c["rule"] == rule}


def test_exact_gives_warm_answers_the_numbers_of_cold_ones(pairs: list[dict[str, Any]]) -> None:
    found = differing(pairs, "exact")
    assert {budget for budget, _ in found} == set(BUDGETS)
    assert {place for _, place in found} == {"alone", "first", "last"}
    assert not any(differ for (_, place), differ in found.items() if place == "alone")
    # With AMX vLLM's own arithmetic depends on the number of rows in a step: the numbers that differ then are the same
    # whatever the mates' texts are.
    assert max(found.values()) <= (3 if AMX else 0)


def test_vllms_own_cut_does_not(pairs: list[dict[str, Any]]) -> None:
    """Most pairs differ, and half of them at the least in every cell: the experiment can tell."""
    alone = [differ for (_, place), differ in differing(pairs, STOCK).items() if place == "alone"]
    assert len(alone) == len(BUDGETS)
    assert min(alone) >= 5
    assert sum(alone) > 5 * len(alone)


def test_a_group_with_smaller_blocks() -> None:
    """Extracted hidden states, on half the states' block: vLLM's own cut files states under prefixes they haven't
    consumed, and all ten answers are far off. Those of `exact` are the cold ones; `fast` differs by rounding."""
    found = on_engine("qwen3.5-hidden")
    assert found["status"] == "active"
    stock, exact, fast = (found["smaller_block"][rule] for rule in (STOCK, "exact", "fast"))
    assert stock["cached"] == exact["cached"] == fast["cached"]
    assert all(0 < first < second for first, second in exact["cached"])
    assert (stock["differ"], exact["differ"]) == (10, 0)
    assert stock["apart"] > 1
    assert stock["apart"] > 3 * fast["apart"]
