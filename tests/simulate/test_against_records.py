"""The simulator against figures that it had no part in: what real servers reused, and what a public trace shares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from statemark.align import Setup, make_setup
from statemark.simulate.cost import Cost
from statemark.simulate.formats import read_trace
from statemark.simulate.scenario import Load, simulate
from tests.align.record.live_hits import OUTPUTS, RUNS, series
from tests.align.tiny_models import CASES, COMMON, qwen3_next

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "align" / "data" / "live_hits.json").read_text(encoding="utf-8")
)
TRACES = Path(os.environ.get("STATEMARK_TRACES", Path(__file__).parents[3] / "shared" / "traces" / "coding_agent"))
MOONCAKE = TRACES.parent / "conversation_trace.jsonl.gz"


def setup(folder: Path, config: dict[str, Any], *flags: str) -> Setup:
    (folder / "config.json").write_text(json.dumps(config))
    return make_setup([str(folder), *flags], gpu="cpu")


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", sorted(RUNS))
def test_hits_are_those_of_a_recorded_vllm(name: str, tmp_path: Path) -> None:
    """Forty prompts, one at a time, asked of a real vLLM 0.32: every single count."""
    seen = RECORDED[name]
    config, flags = CASES[name]
    machine = setup(tmp_path, config, *COMMON, *flags, *RUNS[name])
    lines = [
        {"at": number, "parts": [list(p) for p in parts], "output": OUTPUTS}
        for number, parts in enumerate(series(seen["block"]))
    ]
    trace = read_trace(write(tmp_path / "series.jsonl", lines))
    assert trace.prompt_tokens == seen["prompt_tokens"]
    budget = machine.budget.scheduled
    result, outcome = simulate(trace, machine, "vllm-0.32", budget, Cost(), Load(together=1))
    assert [outcome.hits[n] for n in range(len(lines))] == seen["hits"]
    assert result.computed == seen["prompt_tokens"] - sum(seen["hits"])
    assert sum(seen["hits"]) > 0.2 * seen["prompt_tokens"]  # a series without hits would prove nothing


def dense(folder: Path, grid: int) -> Setup:
    """A model whose states are kept on every boundary of `grid`."""
    flags = ["--block-size", str(grid), "--prefix-cache-retention-interval", "None", "--enable-prefix-caching"]
    flags += ["--mamba-cache-mode", "align", "--max-num-batched-tokens", "131072"]
    machine = setup(folder, qwen3_next(max_position_embeddings=262144), *flags)
    assert machine.frame.grid.tokens == grid
    return machine


@pytest.mark.parametrize(
    ("grid", "again", "part"),
    [(512, 19968, 5120), (1024, 19456, 5120), (2048, 18432, 4096), (4096, 16384, 4096), (8192, 16384, 0)],
)
def test_a_grid_decides_what_a_trace_reuses(grid: int, again: int, part: int, tmp_path: Path) -> None:
    """20,000 tokens, the same again (all but a token could be reused), and one that shares its first 5,120."""
    lines = [
        {"timestamp": i, "input_length": n, "output_length": 2, "hash_ids": ids}
        for i, (n, ids) in enumerate(
            [(20000, [*range(40)]), (20000, [*range(40)]), (9000, [*range(10), *range(100, 108)])]
        )
    ]
    trace = read_trace(write(tmp_path / "t.jsonl", lines))
    result, outcome = simulate(trace, dense(tmp_path, grid), "exact", 131072, Cost(), Load(together=1))
    assert [outcome.hits[n] for n in range(3)] == [0, again, part]
    assert result.hit_rate == pytest.approx((again + part) / 49000, abs=1e-6)


@pytest.mark.slow
@pytest.mark.skipif(not MOONCAKE.exists(), reason="the public conversation trace isn't on this machine")
@pytest.mark.parametrize(
    ("grid", "percent"), [(512, 37.34), (1024, 33.96), (2048, 32.10), (4096, 29.12), (8192, 23.97)]
)
def test_the_public_conversation_trace(grid: int, percent: float, tmp_path: Path) -> None:
    """Token hits of 12,031 requests with a cache without limit. The figures come from the trace's hashes alone."""
    trace = read_trace(MOONCAKE)
    assert len(trace.requests) == 12031
    result, _ = simulate(trace, dense(tmp_path, grid), "exact", 131072, Cost(), Load(together=1))
    assert result.refused == 0
    assert round(100 * result.hit_rate, 2) == percent
