"""How far quantised weights move a model's predictions: mean KL divergence to its own float32 logits, over a text.

    python benchmarks/quantization.py MODEL                                   # float32 against bfloat16, int8 and int4
    python benchmarks/quantization.py MODEL --tokens 50000 --peers FOLDER     # and llama.cpp's of the same model
    python benchmarks/quantization.py MODEL --random                          # random weights in MODEL's shape

The text is the language reference that comes with Python (pydoc_data), in windows of 512 tokens. With --peers the model
is converted to GGUF, quantised by llama-quantize and run by llama.cpp itself, on the same tokens; FOLDER is that of
benchmarks/peers, and what is missing there is set up.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statemark.kernels import Arena, Batch, Runtime
from statemark.models import load_model, load_tokenizer

WINDOW = 512
OURS = {"bfloat16": {}, "int8": {"quantization": "int8"}, "int4": {"quantization": "int4"}}
GGUF = ("BF16", "Q8_0", "Q4_K_M")


@dataclass(frozen=True)
class Candidate:
    """`logits`: float32 [tokens, vocabulary] of token ids on their own. `nbytes`: of the weights."""

    logits: Callable[[np.ndarray], np.ndarray]
    nbytes: int


def windows(folder: Path, count: int) -> list[np.ndarray]:
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = np.array(load_tokenizer(folder).encode(text[: 16 * count]), dtype=np.int32)[:count]
    if len(ids) < count:
        raise SystemExit(f"error: the text has {len(ids)} tokens, {count} are asked for")
    return [ids[i : i + WINDOW] for i in range(0, count, WINDOW)]


def ours(folder: Path, runtime: Runtime, **options: str) -> Candidate:
    model = load_model(folder, runtime=runtime, **options)
    return Candidate(lambda ids: _forward(model, ids), model.spec.weight_bytes)


def _forward(model: Any, ids: np.ndarray) -> np.ndarray:
    spec = model.spec
    pages = np.arange(-(-len(ids) // 16), dtype=np.int32)[None]
    arena = Arena(
        pages.size, spec.page_elems, spec.kv_dtype, 1, max(spec.slot_floats, 1), max(spec.num_recurrent_layers, 1)
    )
    zero, nothing = np.zeros(1, np.int32), np.zeros((0, 3), np.int32)
    ends = np.array([0, len(ids)], np.int32)
    batch = Batch(ids, ends, zero, np.zeros(1, np.uint64), zero - 1, zero, nothing, pages)
    hidden = model.forward(batch, ids, np.arange(len(ids), dtype=np.int32), arena)
    result: np.ndarray = model.logits(np.array(hidden))
    return result


def theirs(folder: Path, model: Path, vocabulary: int, threads: int) -> dict[str, Candidate]:
    """llama.cpp's forms of the model, each in a process that answers token ids with logits."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
    from environments import set_up
    from llama_cpp import converted, environment, logits_tool
    from padded import loadable

    peers = set_up(folder, ["llama"])
    tool, variables = logits_tool(peers), environment(peers.llama_bin)

    def start(file: Path) -> Candidate:
        command = [str(tool), str(file), str(threads), str(WINDOW)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables
        )
        return Candidate(lambda ids: _asked(process, ids, vocabulary), file.stat().st_size)

    with tempfile.TemporaryDirectory() as scratch:
        source = loadable(model, Path(scratch))
        files = {weights: converted(folder, source, weights, peers) for weights in GGUF}
    return {f"llama.cpp {weights}": start(file) for weights, file in files.items()}


def _asked(process: subprocess.Popen[bytes], ids: np.ndarray, vocabulary: int) -> np.ndarray:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(np.int32(len(ids)).tobytes() + ids.astype(np.int32).tobytes())
    process.stdin.flush()
    data = process.stdout.read(4 * len(ids) * vocabulary)
    if len(data) < 4 * len(ids) * vocabulary:
        raise SystemExit(f"error: llama.cpp ended\n\nhint: run it by hand: {' '.join(map(str, process.args))}")  # type: ignore[arg-type]
    return np.frombuffer(data, np.float32).reshape(len(ids), vocabulary)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="compare with llama.cpp, which is there or made")
    parser.add_argument("--random", action="store_true", help="measure a model of the same shape with random weights")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = randomised(args.model, Path(scratch)) if args.random else args.model
        rows = measure(folder, args.tokens, Runtime(args.threads), args.peers)
    if args.json:
        print(json.dumps({"tokens": args.tokens, "rows": rows}, sort_keys=True))
        return
    print(f"{'':<24}{'KL, nats':>12}{'same best':>12}{'MB':>9}")
    for name, row in rows.items():
        print(f"{name:<24}{row['kl']:>12.6f}{row['same_best']:>12.2%}{row['bytes'] / 1e6:>9.1f}")


def randomised(model: Path, scratch: Path) -> Path:
    from statemark.models.make_model import write_model

    out = scratch / f"{model.name}-random"
    write_model(out, json.loads((model / "config.json").read_text()), seed=0, dtype="bfloat16")
    return out


def measure(folder: Path, tokens: int, runtime: Runtime, peers: Path | None) -> dict[str, dict[str, float]]:
    """Figures by candidate. Each window is run by all of them, so the float32 logits are made once."""
    parts = windows(folder, tokens)
    exact = ours(folder, runtime, dtype="float32")
    candidates = {name: ours(folder, runtime, **options) for name, options in OURS.items()}
    if peers is not None:
        vocabulary = int(json.loads((folder / "config.json").read_text())["vocab_size"])
        candidates |= theirs(peers, folder, vocabulary, runtime.threads)
    divergence, agreed = dict.fromkeys(candidates, 0.0), dict.fromkeys(candidates, 0)
    for number, ids in enumerate(parts, 1):
        print(f"\r{number} of {len(parts)} windows", end="", file=sys.stderr, flush=True)
        p = log_softmax(exact.logits(ids))
        weights, best = np.exp(p), p.argmax(axis=1)
        for name, candidate in candidates.items():
            q = log_softmax(candidate.logits(ids))
            divergence[name] += float((weights * (p - q)).sum())
            agreed[name] += int((best == q.argmax(axis=1)).sum())
    print(file=sys.stderr)
    return {
        name: {"kl": divergence[name] / tokens, "same_best": agreed[name] / tokens, "bytes": found.nbytes}
        for name, found in candidates.items()
    }


if __name__ == "__main__":
    main()
