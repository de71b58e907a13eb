"""What a real vLLM 0.32 for CPUs reused of a fixed series of prompts, request by request, against the oracle.

Every day against the recorded series; with -m vllm against a server on this machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statemark.align.budget import resolve_budget
from statemark.align.families import read_model
from statemark.align.flags import parse_serve_flags
from statemark.align.frame import frame_of
from statemark.align.oracle import Job, Limits, Prompt, World, groups_of
from statemark.align.platforms import Usage, platform
from statemark.align.resolve import resolve_geometry
from statemark.align.rules import make_rule
from tests.align.record.live_hits import OUTPUTS, RUNS, series
from tests.align.tiny_models import CASES, COMMON

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "data" / "live_hits.json").read_text(encoding="utf-8")
)


def predicted(name: str, seen: dict[str, Any], rule: str = "vllm-0.32") -> list[int]:
    block = seen["block"]
    config, flags = CASES[name]
    parsed = parse_serve_flags(["m", *COMMON, *flags, *RUNS[name]])[1]
    machine = platform("cpu-avx512-bf16" if seen.get("float32_states_forced") else "cpu")
    geometry = resolve_geometry(read_model(config), parsed, machine)
    assert geometry.scheduler_block.tokens == block
    budget = resolve_budget(parsed, machine, Usage.SERVER, geometry.max_model_len)
    frame = frame_of(geometry, budget, retention=parsed.retention_interval)
    world = World(frame, groups_of(geometry), make_rule(rule, frame), Limits(drafts=geometry.drafting.depth))
    hits = []
    for number, parts in enumerate(series(block)):
        job = world.add(Job(f"r{number}", Prompt(parts), outputs=OUTPUTS))
        world.run()
        hits.append(job.hits[0])
    assert not world.stale
    return hits


@pytest.mark.parametrize("name", sorted(RUNS))
def test_recorded_series(name: str) -> None:
    seen = RECORDED[name]
    assert predicted(name, seen) == seen["hits"]
    assert sum(seen["hits"]) > 0.2 * seen["prompt_tokens"]  # a series without hits would prove nothing


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUNS))
def test_live_series(name: str) -> None:
    pytest.importorskip("vllm")
    from tests.align.record.live_hits import record

    seen = record(name)
    assert predicted(name, seen) == seen["hits"]
