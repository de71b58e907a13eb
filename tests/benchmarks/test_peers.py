"""The comparison with peers: arithmetic, order, table and protocol, without any peer."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

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


def test_the_ratio_is_to_the_faster_peer_and_by_rounds() -> None:
    # The machine was slow in the second round: the ratio of medians would be 100 / 60.
    runs = {"prefill 512": {"statemark": [100.0, 40.0, 110.0], "a": [50.0, 20.0, 60.0], "b": [10.0, 10.0, 10.0]}}
    cell = module("results").summarise(runs)["prefill 512"]
    assert cell["statemark"] == {"median": 100.0, "low": 40.0, "high": 110.0, "rounds": [100.0, 40.0, 110.0]}
    assert (cell["best_peer"], cell["ratio_to_best_peer"]) == ("a", 2.0)


def test_the_table_leaves_out_what_was_not_measured() -> None:
    results = module("results")
    runs = {"prefill 512": {"statemark": [123.4], "a": [50.0]}, "decode, 8 streams": {"statemark": [12.34], "a": []}}
    engines = {"statemark": {"label": "Statemark bf16"}, "a": {"label": "A"}}
    assert results.table({"cells": results.summarise(runs), "engines": engines}) == (
        "| tok/s | prefill 512 | decode, 8 streams |\n"
        "|---|---|---|\n"
        "| Statemark bf16 | 123 | 12.3 |\n"
        "| A | 50.0 |  |\n"
        "| Statemark to the faster peer | 2.47x |  |\n"
    )


def test_the_readme_quotes_the_result_as_it_is() -> None:
    results = module("results")
    readme = (results.ROOT / "README.md").read_text()
    assert results.quote(readme, json.loads(results.RESULT.read_text())) == readme


def test_a_document_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(SystemExit, match="0 places"):
        module("results").quote("no comments here", json.loads(module("results").RESULT.read_text()))


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


def test_llama_bench_is_asked_for_one_thing_at_a_time() -> None:
    engine = module("llama_cpp").LlamaCpp(Path("bin"), Path("m.gguf"), 2, "v")
    always = ["-m", "m.gguf", "-t", "2"]
    assert engine.command("prefill", 512)[1:] == [*always, "-p", "512", "-n", "0", "-r", "1", "-o", "json"]
    assert engine.command("decode", 64)[1:] == [*always, "-p", "0", "-n", "64", "-r", "1", "-o", "json"]
