"""The comparison with peers: arithmetic, order, table and protocol, without any peer."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import running

PEERS = Path(__file__).resolve().parents[2] / "benchmarks" / "peers"


@pytest.fixture(scope="module", autouse=True)
def on_path() -> Iterator[None]:
    """The scripts import each other by bare name, since each runs in an environment of its own."""
    sys.path.insert(0, str(PEERS))
    yield
    sys.path.remove(str(PEERS))


def module(name: str) -> ModuleType:
    return __import__(name)


def test_prefill_is_the_prompt_over_the_call() -> None:
    cells = module("cells")
    jobs: list[Any] = []

    def run(job: Any) -> float:
        jobs.append(job)
        return 2.0

    assert cells.rate_of(cells.Cell("prefill", 512), run, random.Random(0), 1000) == 256.0
    [job] = jobs
    assert [len(prompt) for prompt in job.prompts] == [512]
    assert job.output_tokens == 1
    assert {token for prompt in job.prompts for token in prompt} <= set(range(1000))


def test_decode_is_the_difference_of_two_calls() -> None:
    cells = module("cells")
    # A call costs 1 second, a prompt token 0.01 and a step 0.1: 64 steps of 8 streams in 6.4 seconds.
    jobs: list[Any] = []

    def run(job: Any) -> float:
        jobs.append(job)
        return 1.0 + 0.01 * sum(map(len, job.prompts)) + 0.1 * job.output_tokens

    rate = cells.rate_of(cells.Cell("decode", 64, streams=8), run, random.Random(0), 1000)
    assert rate == pytest.approx(80.0)
    assert [(len(job.prompts), job.output_tokens) for job in jobs] == [(8, 1), (8, 65)]
    assert jobs[0].prompts != jobs[1].prompts


def test_every_engine_goes_first_in_some_round() -> None:
    order = module("cells").order_of_round
    names = ["a", "b", "c"]
    assert [order(names, number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    assert all(sorted(order(names, number)) == names for number in range(4))


def rounds(cell: str, **rates: list[float]) -> list[dict[str, dict[str, float]]]:
    """One round a place of the lists. Engines by names without hyphens."""
    names = {name.replace("-", "_"): name for name in module("engines").ENGINES}
    return [{cell: {names[key]: found[i] for key, found in rates.items()}} for i in range(len(rates["statemark"]))]


def test_the_ratio_is_to_the_faster_peer_and_by_rounds() -> None:
    # The machine was slow in the second round: the ratio of medians would be 100 / 60.
    runs = rounds(
        "prefill 512", statemark=[100.0, 40.0, 110.0], llama_bf16=[50.0, 20.0, 60.0], vllm_bf16=[10.0, 10.0, 10.0]
    )
    cell = module("results").summarise(runs)["prefill 512"]
    assert cell["engines"]["statemark"] == {"median": 100.0, "low": 40.0, "high": 110.0, "rounds": 3}
    [ratio] = cell["ratios"]
    assert (ratio["peer"], ratio["ratio"], ratio["rounds"]) == ("llama-bf16", 2.0, [2.0, 2.0, 1.833])


def test_only_rounds_that_both_were_part_of_make_a_ratio() -> None:
    runs = rounds("prefill 512", statemark=[100.0, 200.0]) + rounds("prefill 512", statemark=[90.0], llama_bf16=[30.0])
    cell = module("results").summarise(runs)["prefill 512"]
    assert cell["engines"]["statemark"]["rounds"] == 3
    assert [ratio["rounds"] for ratio in cell["ratios"]] == [[3.0]]


def test_each_precision_is_compared_with_its_own_peers() -> None:
    engines = module("engines")
    pairs = {name: kind.rivals for name, kind in engines.ENGINES.items() if kind.rivals}
    assert pairs == {
        "statemark": (("vllm-bf16", "llama-bf16"), ("openvino-bf16",)),
        "statemark-int8": (("llama-q8_0",),),
        "statemark-int4": (("llama-q4_k_m",),),
    }
    assert engines.chosen("llama-q8_0,statemark-int8") == ["statemark-int8", "llama-q8_0"]
    with pytest.raises(SystemExit, match="unknown engine 'llama-q2'"):
        engines.chosen("statemark,llama-q2")


def result_of(runs: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """On a machine of 400 GFLOP/s and 30 GB/s, with a model of 1 GFLOP a token and 1 GB, 0.25 GB in int4."""
    work = {
        "bfloat16": {"prefill_flops": 1e9, "decode_bytes": 1e9},
        "int4": {"prefill_flops": 1e9, "decode_bytes": 0.25e9},
    }
    return {"runs": runs, "limits": {"product_rate": 400e9, "read_rate": 30e9}, "work": work}


def test_the_table_leaves_out_what_was_not_measured() -> None:
    runs = rounds("prefill 512", statemark=[323.4], llama_bf16=[147.0], statemark_int4=[200.0])
    runs += rounds("decode, 1 stream", statemark=[24.0], statemark_int4=[60.0], llama_q4_k_m=[50.0])
    assert module("results").table(result_of(runs)) == (
        "| tok/s | prefill 512 | decode, 1 stream |\n"
        "|---|---|---|\n"
        "| Statemark bf16 | 323 | 24.0 |\n"
        "| llama.cpp BF16 | 147 |  |\n"
        "| Statemark bf16 to llama.cpp BF16 | **2.20x** |  |\n"
        "| Statemark bf16, of the machine's limit | 81% | 80% |\n"
        "| Statemark int4 | 200 | 60.0 |\n"
        "| llama.cpp Q4_K_M |  | 50.0 |\n"
        "| Statemark int4 to llama.cpp Q4_K_M |  | **1.20x** |\n"
        "| Statemark int4, of the machine's limit |  | 50% |\n"
    )


def test_long_prompts_are_told_as_seconds_to_the_first_token() -> None:
    results = module("results")
    runs = rounds("prefill 8192", statemark=[256.0], llama_bf16=[128.0]) + rounds("prefill 512", statemark=[300.0])
    assert results.long_prompts(result_of(runs)) == [("8192", "Statemark bf16 32.0, llama.cpp BF16 64.0")]


def test_the_agents_table_has_medians_and_the_ratio_to_the_faster_peer() -> None:
    def figures(duration: float, cached: int) -> dict[str, float]:
        return {"duration": duration, "p50_ttft_ms": 100 * duration, "p90_ttft_ms": 200 * duration,
                "cached_tokens": cached, "ideal_cached_tokens": 200}  # fmt: skip

    runs = [
        {"statemark": figures(10.0, 200), "vllm-bf16": figures(40.0, 150), "llama-bf16": figures(35.0, 100)},
        {"statemark": figures(12.0, 200), "llama-bf16": figures(36.0, 100)},
    ]
    assert module("results").agent_table({"runs": runs}) == (
        "| | wall time, s | TTFT P50, s | TTFT P90, s | cached of ideal |\n"
        "|---|---|---|---|---|\n"
        "| Statemark bf16 | 11.0 | 1.10 | 2.20 | 200 of 200 (100.0%) |\n"
        "| vLLM CPU bf16 | 40.0 | 4.00 | 8.00 | 150 of 200 (75.0%) |\n"
        "| llama.cpp BF16 | 35.5 | 3.55 | 7.10 | 100 of 200 (50.0%) |\n"
        "| llama.cpp BF16 over Statemark bf16 | **3.25x** | | | |\n"
    )


def test_the_agents_prompts_share_what_they_are_said_to() -> None:
    requests = module("agent").requests_of(0, 5000)
    assert [(r.session, r.turn) for r in requests[:4]] == [
        ("agent 0", 1),
        ("agent 1", 1),
        ("agent 2", 1),
        ("agent 0", 2),
    ]
    assert sum(len(r.prompt) for r in requests) == 40_788
    assert sum(r.ideal for r in requests) == 35_844
    first, second = requests[0].prompt, requests[3].prompt
    assert len(second) == len(first) + 16 + 150
    assert second[: len(first)] == first
    assert requests[1].prompt[:3000] == first[:3000]
    assert requests[1].prompt[3000] != first[3000]
    assert module("agent").requests_of(1, 5000)[0].prompt[:16] != first[:16]


def test_another_server_than_was_started_is_not_measured() -> None:
    agent = module("agent")
    with running(FakeModel) as server, pytest.raises(RuntimeError, match="answers where vllm was started"):
        asyncio.run(agent.drive(server.url, [], 100, agent.MAKES["vllm"]))


def test_the_readme_quotes_the_results_as_they_are() -> None:
    results = module("results")
    readme = (results.ROOT / "README.md").read_text()
    for name, text in results.quotes().items():
        assert results.quote(readme, name, text) == readme


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="0 places"):
        module("results").quote("no comments here", "peers", "")


WORKER = """
import sys
from protocol import Engine, serve

class Toy(Engine):
    def __init__(self, model, threads, max_model_len, max_streams, dtype):
        print("a library that prints")
        self.given = [model, threads, max_model_len, max_streams, dtype]
    def facts(self):
        return {"given": self.given}
    def run(self, job):
        print("and again")
        job.check([job.output_tokens] * len(job.prompts) if job.output_tokens < 9 else [1])
        return float(job.output_tokens)

serve(Toy)
"""


def start_worker() -> subprocess.Popen[str]:
    options = ["m", "--threads", "2", "--max-model-len", "64", "--max-streams", "3", "--dtype", "bfloat16"]
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", WORKER, *options]
    return subprocess.Popen(command, cwd=PEERS, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_workers_answer_line_by_line_whatever_libraries_print() -> None:
    protocol = module("protocol")
    jobs = protocol.encode(protocol.Job([[1, 2]], 3)) + protocol.encode(protocol.Job([[1], [2]], 4))
    out, err = start_worker().communicate(jobs, timeout=60)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"given": ["m", 2, 64, 3, "bfloat16"]},
        {"seconds": 3.0},
        {"seconds": 4.0},
    ]
    assert err.count("a library that prints") == 1
    assert err.count("and again") == 2


def test_a_worker_that_did_other_work_than_asked_ends() -> None:
    protocol = module("protocol")
    worker = start_worker()
    out, err = worker.communicate(protocol.encode(protocol.Job([[1]], 9)), timeout=60)
    assert worker.returncode != 0
    assert len(out.splitlines()) == 1
    assert "asked for 9 tokens of 1 streams, got [1]" in err


def test_llama_cpp_is_asked_for_one_thing_at_a_time() -> None:
    cell = module("cells").Cell
    engine = module("llama_cpp").LlamaCpp(Path("bin"), Path("m.gguf"), 2, "v")
    always = ["-m", "m.gguf", "-t", "2"]
    assert engine.command(cell("prefill", 512)) == [
        "bin/llama-bench", *always, "-p", "512", "-n", "0", "-r", "1", "-o", "json",
    ]  # fmt: skip
    assert engine.command(cell("decode", 64)) == [
        "bin/llama-bench", *always, "-p", "0", "-n", "64", "-r", "1", "-o", "json",
    ]  # fmt: skip
    assert engine.command(cell("decode", 64, 8)) == [
        "bin/llama-batched-bench", *always, "-c", "640", "-npp", "16", "-ntg", "64", "-npl", "8",
        "--output-format", "jsonl",
    ]  # fmt: skip


def test_a_prompt_of_thousands_of_tokens_is_not_run_twice_to_warm_up() -> None:
    engine = module("llama_cpp").LlamaCpp(Path("bin"), Path("m.gguf"), 2, "v")
    assert "--no-warmup" in engine.command(module("cells").Cell("prefill", 8192))
    assert "--no-warmup" not in engine.command(module("cells").Cell("prefill", 2048))


def test_the_row_of_either_of_its_benchmarks_is_found() -> None:
    only_row = module("llama_cpp").only_row
    assert only_row('[\n  {"avg_ts": 2.5}\n]\n') == {"avg_ts": 2.5}
    assert only_row('\n{"pl": 8, "speed_tg": 51.0}\n\n') == {"pl": 8, "speed_tg": 51.0}
