"""Asks a real llama-server the workload and records how many prompt tokens of each request it took from its slots.

    python tests/simulate/record/llama_counts.py FOLDER_OF_LLAMA_SERVER MODEL.gguf [name ...]

Writes tests/simulate/data/llama_counts.json. Requests go one at a time: a server's answers to several depend on when
each arrives. The model is what `statemark make-model --like qwen3.5-0.8b --scale tiny --vocab 2000` writes, converted
by llama.cpp's own converter (benchmarks/peers/gguf_convert.py).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from workload import tokens, workload  # noqa: E402

OUT = HERE.parent / "data" / "llama_counts.json"
LONGEST = 4000
VOCABULARY = 2000
# name: (seed, llama-server's flags). Which of them `simulate --llama` is told: those that it knows.
RUNS: dict[str, tuple[int, list[str]]] = {
    "as it comes": (1, []),
    "one slot": (2, ["--parallel", "1"]),
    "slots of their own": (3, ["--parallel", "3", "--cache-ram", "0", "--ctx-checkpoints", "4"]),
    "few checkpoints": (
        4,
        ["--parallel", "2", "--ctx-checkpoints", "3", "--checkpoint-min-step", "256", "--batch-size", "512"],
    ),
    "little memory": (5, ["--cache-ram", "12", "--ubatch-size", "128", "--slot-prompt-similarity", "0.5"]),
}


def ask(binaries: Path, model: Path, name: str) -> dict[str, Any]:
    seed, flags = RUNS[name]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(binaries / "llama-server"), "-m", str(model), "--port", str(port), "--threads", "1", *flags]
    slots = int(flags[flags.index("--parallel") + 1]) if "--parallel" in flags else 4
    words += ["--ctx-size", str(8192 * slots)]
    variables = os.environ | {"LD_LIBRARY_PATH": str(binaries)}
    with open(os.devnull, "w") as nothing:
        server = subprocess.Popen(words, env=variables, stdout=nothing, stderr=nothing)
    try:
        _until_ready(port, server)
        asks = workload(seed, LONGEST, 1)
        answers: dict[str, list[int]] = {}
        cached = []
        for one in asks:
            body = {
                "prompt": tokens(one.parts, answers, VOCABULARY),
                "n_predict": one.output,
                "ignore_eos": True,
                "temperature": 2.0,
                "return_tokens": True,
                "cache_prompt": True,
            }
            answer = _post(port, body)
            assert len(answer["tokens"]) == one.output, (one.number, answer)
            answers[one.answer] = answer["tokens"]
            cached.append(answer["timings"]["cache_n"])
        return {"flags": flags, "cached": cached, "prompt_tokens": sum(n for a in asks for _, n in a.parts)}
    finally:
        server.terminate()
        server.wait()


def _until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
                if reply.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.5)
    raise RuntimeError("llama-server didn't get ready")


def _post(port: int, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/completion",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        found: dict[str, Any] = json.loads(reply.read())
    return found


def main() -> None:
    binaries, model, *names = sys.argv[1:]
    records = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in names or list(RUNS):
        records[name] = ask(Path(binaries), Path(model), name)
        print(f"{name}: {sum(records[name]['cached'])} of {records[name]['prompt_tokens']} tokens", flush=True)
        OUT.write_text(json.dumps(records, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
