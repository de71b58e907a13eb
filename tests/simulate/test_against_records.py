"""The simulator against figures that it had no part in: what real servers reused, and what a public trace shares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statemark.align import Setup, make_setup
from statemark.simulate.cost import Cost, fit_cost
from statemark.simulate.formats import read_trace
from statemark.simulate.scenario import Load, simulate
from statemark.simulate.slots import SlotFlags, parse_slot_flags
from tests.align.record.live_hits import OUTPUTS, RUNS, series
from tests.align.tiny_models import CASES, COMMON, qwen3_5, qwen3_next
from tests.simulate.record import llama_counts, vllm_counts
from tests.simulate.record.workload import workload

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "align" / "data" / "live_hits.json").read_text(encoding="utf-8")
)
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "simulate"
PAGE = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
BUNDLED = ROOT / "src" / "statemark" / "bundled"
DATA = Path(__file__).parent / "data"
LLAMA: dict[str, dict[str, Any]] = json.loads((DATA / "llama_counts.json").read_text(encoding="utf-8"))
VLLM: dict[str, dict[str, Any]] = json.loads((DATA / "vllm_counts.json").read_text(encoding="utf-8"))
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


# What the model of tests/simulate/record/llama_counts.py says of its caches.
TINY = qwen3_5(
    max_position_embeddings=8192,
    num_hidden_layers=4,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=2,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
)


def test_llama_servers_and_vllms_runs_are_all_recorded() -> None:
    assert set(LLAMA) == set(llama_counts.RUNS)
    assert set(VLLM) == set(vllm_counts.RUNS)


@pytest.mark.parametrize("name", sorted(llama_counts.RUNS))
def test_cached_tokens_are_those_of_a_recorded_llama_server(name: str, tmp_path: Path) -> None:
    """200 requests, one at a time, asked of a real llama-server under several of its flags: every single count."""
    seed, words = llama_counts.RUNS[name]
    flags = {f.removeprefix("--").removesuffix("-size"): v for f, v in zip(words[::2], words[1::2], strict=True)}
    batch = int(flags.pop("batch", "2048"))
    slots = parse_slot_flags(",".join(f"{f}={v}" for f, v in flags.items())) if flags else SlotFlags()
    asks = workload(seed, llama_counts.LONGEST, 1)
    trace = read_trace(write(tmp_path / "asks.jsonl", [a.as_trace() for a in asks]))
    load = Load(together=1)
    result, outcome = simulate(trace, setup(tmp_path, TINY), "llama.cpp", batch, Cost(), load, slots=slots)
    seen = LLAMA[name]
    assert words == seen["flags"]
    assert [outcome.hits[n] for n in range(len(asks))] == seen["cached"]
    assert result.computed == seen["prompt_tokens"] - sum(seen["cached"])
    assert sum(seen["cached"]) > 0.2 * seen["prompt_tokens"]


@pytest.mark.parametrize("name", sorted(vllm_counts.RUNS))
def test_cached_tokens_are_those_of_a_recorded_vllm(name: str, tmp_path: Path) -> None:
    """200 requests in waves, asked of a real vLLM 0.32: every single count, and the steps that it took."""
    model, words, seed, longest, largest = vllm_counts.RUNS[name]
    config, flags = CASES[model]
    common = list(COMMON)
    if "--max-num-seqs" in words:  # vLLM takes the last of two, `check` calls them a contradiction
        at = common.index("--max-num-seqs")
        del common[at : at + 2]
    machine = setup(tmp_path, config, *common, *flags, *words)
    asks = workload(seed, longest, largest)
    trace = read_trace(write(tmp_path / "asks.jsonl", [a.as_trace() for a in asks]))
    seen = VLLM[name]
    assert machine.frame.grid.tokens == seen["block"]
    assert machine.flags.blocks_override == seen["blocks"]
    budget = machine.budget.scheduled
    result, outcome = simulate(trace, machine, "vllm-0.32", budget, Cost(), Load(), blocks=seen["blocks"])
    assert [outcome.hits[n] for n in range(len(asks))] == seen["cached"]
    assert result.steps == seen["steps"]
    assert sum(seen["cached"]) > 0.2 * seen["prompt_tokens"]


@pytest.mark.parametrize(("name", "together", "within"), [("alone", 1, 0.1), ("together", 4, 0.18)])
def test_times_of_a_measured_server(name: str, together: int, within: float) -> None:
    """A cost fitted to fifty requests, one at a time, on Statemark's own server; then those, and fifty in company."""
    measured = [json.loads(line) for line in (DOCS / f"{name}-measured.jsonl").read_text().splitlines()]
    trace = read_trace(DOCS / f"{name}.jsonl")
    machine = make_setup([str(BUNDLED)])
    cost = fit_cost(DOCS / "alone-measured.jsonl", 1024)
    assert cost.error < 0.12
    result, outcome = simulate(trace, machine, "statemark", 1024, cost.cost, Load(together=together))
    assert result.computed == sum(m["prompt"] - m["cached"] for m in measured)
    if together == 1:
        assert [outcome.hits[n] for n in range(50)] == [m["cached"] for m in measured]
    ends = np.percentile([m["e2e"] for m in measured], [50, 90, 99])
    assert result.whole == pytest.approx(tuple(ends), rel=within)
    # The page shows these figures.
    assert result.ttft is not None
    assert result.whole is not None
    shown = [f"{1000 * v:.0f} ms" for v in (*result.ttft[:2], *result.whole[:2])]
    assert f"simulated | {' | '.join(shown)} | {result.computed:,} |" in PAGE
    first = np.percentile([m["ttft"] for m in measured], [50, 90])
    assert result.ttft[:2] == pytest.approx(tuple(first), rel=0.18)
    shown = [f"{1000 * v:.0f} ms" for v in (*first, *ends[:2])]
    assert f"measured | {' | '.join(shown)} |" in PAGE


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
