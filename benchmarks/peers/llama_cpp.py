"""llama.cpp through its own benchmarks: one process a measurement, which loads, warms up and times by itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import DECODE_PROMPT, Cell
from environments import Peers

# A prompt from here on takes minutes, beside which what a warm-up saves is nothing.
LONG = 8192


@dataclass
class LlamaCpp:
    binaries: Path
    model: Path
    threads: int
    version: str

    def command(self, cell: Cell) -> list[str]:
        """llama-bench for one stream: it warms up with the same work before it times one run of it.

        It knows no more than one stream; for several there is llama-batched-bench, which warms up with 16 tokens.
        """
        if cell.streams > 1:
            room = cell.streams * (DECODE_PROMPT + cell.tokens)
            what = ["-c", str(room), "-npp", str(DECODE_PROMPT), "-ntg", str(cell.tokens), "-npl", str(cell.streams)]
            tool, output = "llama-batched-bench", ["--output-format", "jsonl"]
        else:
            # Prompts are cut into batches of 2048 and micro-batches of 512, the defaults of all its tools.
            what = (
                ["-p", str(cell.tokens), "-n", "0"] if cell.kind == "prefill" else ["-p", "0", "-n", str(cell.tokens)]
            )
            tool, output = "llama-bench", ["-r", "1", "-o", "json"]
            if cell.tokens >= LONG:
                what.append("--no-warmup")
        return [str(self.binaries / tool), "-m", str(self.model), "-t", str(self.threads), *what, *output]

    def rate(self, cell: Cell) -> float:
        row = self._run(cell)
        return float(row["speed_tg"] if cell.streams > 1 else row["avg_ts"])

    def facts(self) -> dict[str, Any]:
        row = self._run(Cell("decode", 1))
        return {
            "version": self.version,
            "backends": row["backends"],
            "threads": row["n_threads"],
            "model_type": row["model_type"],
        }

    def _run(self, cell: Cell) -> dict[str, Any]:
        return only_row(_checked(self.command(cell), environment(self.binaries)))


def only_row(output: str) -> dict[str, Any]:
    """llama-bench prints a list of one row, llama-batched-bench one object among empty lines."""
    found = json.loads(output[min(i for i in (output.find("["), output.find("{")) if i >= 0) :])
    [row] = found if isinstance(found, list) else [found]
    return dict(row)


def environment(binaries: Path) -> dict[str, str]:
    return os.environ | {"LD_LIBRARY_PATH": str(binaries)}


def converted(folder: Path, model: Path, weights: str, peers: Peers) -> Path:
    """The GGUF file of a checkpoint in `folder`: BF16 and F32 by llama.cpp's converter, others by llama-quantize."""
    path = folder / f"{model.name}-{weights.lower()}.gguf"
    if path.exists():
        return path
    unfinished = path.with_suffix(".part")
    if weights in ("BF16", "F32"):
        script = Path(__file__).resolve().parent / "gguf_convert.py"
        command = [peers.vllm_python, script, peers.converter, model, unfinished, weights.lower()]
    else:
        source = converted(folder, model, "BF16", peers)
        command = [peers.llama_bin / "llama-quantize", source, unfinished, weights]
    _checked([str(part) for part in command], environment(peers.llama_bin))
    unfinished.rename(path)
    return path


def logits_tool(peers: Peers) -> Path:
    """Compiles llama_logits.cpp against the libraries that the tools use."""
    source, tool = Path(__file__).resolve().parent / "llama_logits.cpp", peers.llama_bin / "llama_logits"
    if not tool.exists() or tool.stat().st_mtime < source.stat().st_mtime:
        headers = [f"-I{peers.converter / part / 'include'}" for part in (".", "ggml")]
        libraries = [f"-L{peers.llama_bin}", "-lllama", "-lggml", "-lggml-base"]
        _checked(["g++", "-O2", "-std=c++17", *headers, str(source), "-o", str(tool), *libraries], dict(os.environ))
    return tool


def _checked(command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout
