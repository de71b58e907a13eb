"""Predicted geometry equals what vLLM 0.32 for CPUs logs at start: tiny models of eight families, also with drafters.

Every day against the recorded starts; with -m vllm against starts on this machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statemark.align.budget import resolve_budget
from statemark.align.families import read_model
from statemark.align.flags import parse_serve_flags
from statemark.align.geometry import Geometry
from statemark.align.groups import Group, Role
from statemark.align.platforms import Usage, platform
from statemark.align.resolve import resolve_geometry
from tests.align.tiny_models import CASES, COMMON, DRAFTERS

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "live_geometry.json").read_text(encoding="utf-8")
)


def _kind(group: Group) -> str:
    """vLLM's name for what a group holds."""
    if group.role is Role.STATE:
        return "MambaSpec"
    return "FullAttentionSpec" if group.window is None else "SlidingWindowSpec"


def check(name: str, seen: dict[str, Any]) -> None:
    config, words = CASES[name]
    shape = read_model(config)
    flags = parse_serve_flags(["m", *COMMON, *words])[1]
    machine = platform("cpu-avx512-bf16" if seen["float32_states_forced"] else "cpu")
    found = resolve_geometry(shape, flags, machine, DRAFTERS.get(name))
    budget = resolve_budget(flags, machine, Usage.SERVER, found.max_model_len, found.drafting.slots)

    predicted = sorted((_kind(g), g.unit.tokens, g.page_bytes) for g in found.groups for _ in range(g.copies))
    assert predicted == sorted(zip(seen["kinds"], seen["blocks"], seen["pages"], strict=True))
    assert {g.content_bytes for g in found.state_groups} == set(seen["state_bytes"])
    assert found.caching == seen["caching"]
    assert found.config_minimum.tokens == seen["config_minimum"]
    assert found.scheduler_block.tokens == seen["scheduler_block"]
    assert found.hash_unit.tokens == seen["hash_unit"]
    assert found.hit_unit.tokens == seen["hit_unit"]
    assert {_kind(g) for g in found.groups if g.dropped} == {seen["kinds"][i] for i in seen["dropped"]}
    assert budget.tokens == seen["max_num_batched_tokens"]
    assert flags.kv_cache_bytes is not None
    assert flags.kv_cache_bytes // found.bytes_per_block == seen["num_blocks"]
    _check_log(found, found.concurrency(flags.kv_cache_bytes, budget.tokens), seen)


def _check_log(found: Geometry, concurrency: float, seen: dict[str, Any]) -> None:
    """The same through the lines that an operator reads in the server's log."""
    assert f"{concurrency:.2f}" == seen["concurrency_logged"]
    assert f"{int(concurrency * found.max_model_len):,}" == seen["tokens_logged"]
    assert str(found.scheduler_block) == seen["lcm_logged"]
    sizes = sorted(str(g.unit.tokens) for g in found.groups for _ in range(g.copies))
    assert sorted(seen["group_sizes_logged"].split(", ")) == sizes
    attention = next(g for g in found.groups if g.role is Role.ATTENTION)
    # logged before a draft model's pages widened the blocks
    first = found.grid.tokens if found.caching else attention.unit.tokens
    if seen["attention_block_logged"] is not None:
        assert int(seen["attention_block_logged"]) == first
    if seen["padding_logged"] is not None:
        page = attention.content_bytes * first // attention.unit.tokens
        assert f"{100 * (page / found.state_groups[0].content_bytes - 1):.2f}" == seen["padding_logged"]


def test_starts_of_at_least_eight_families_are_recorded() -> None:
    started = {name: seen for name, seen in RECORDED.items() if "failed" not in seen}
    assert set(started) == set(CASES)
    assert len({read_model(CASES[name][0]).family for name in started}) >= 8


@pytest.mark.parametrize("name", sorted(CASES))
def test_recorded_start(name: str) -> None:
    check(name, RECORDED[name])


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES))
def test_live_start(name: str) -> None:
    pytest.importorskip("vllm")
    from tests.align.record.live_geometry import record

    seen = record(name)
    assert "failed" not in seen, seen
    check(name, seen)
