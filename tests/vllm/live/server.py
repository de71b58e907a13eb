"""Starts as users make them: an offline engine over two ranks in processes of its own, and the HTTP server.

python -m tests.vllm.live.server ranks|http
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.vllm.live import weights
from tests.vllm.live.engine import MODELS, digest, rows, start, text


def ranks() -> dict[str, Any]:
    """Tensor parallel 2, scheduler and workers in processes of their own: cold, again, and siblings.

    The sibling's cold run passes the boundary from which a warm one starts, where a step has room for it.
    """
    from vllm import SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        llm = start("qwen3.5", folder, tensor_parallel_size=2, max_num_batched_tokens=2048, max_model_len=4096)
        sampling = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=20)

        def ask(prompt: list[int]) -> tuple[int, str]:
            (done,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
            return done.num_cached_tokens, digest(rows(done.outputs[0].logprobs))

        prompt = text("ranks", 840)
        sibling = prompt + text("sibling", 400)
        cold_sibling = ask(sibling)
        llm.reset_prefix_cache()
        return {
            "cold": ask(prompt),
            "warm": ask(prompt),
            "cold_sibling": cold_sibling,
            "siblings": [ask(sibling), ask(sibling)],
        }


def http() -> dict[str, Any]:
    """`vllm serve` as a process, asked over HTTP."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        weights.write(folder, MODELS["qwen3-next"])
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        words = ["serve", folder, "--skip-tokenizer-init", "--enforce-eager", "--block-size", "32"]
        words += ["--dtype", "bfloat16", "--max-model-len", "4096", "--max-num-seqs", "8", "--port", str(port)]
        words += ["--kv-cache-memory-bytes", "256M", "--enable-prompt-tokens-details", "--host", "127.0.0.1"]
        words += [
            "--scheduler-cls",
            "statemark.vllm.Scheduler",
            "--additional-config",
            '{"statemark": {"rule": "fast"}}',
        ]
        # The command asks for metadata under vLLM's own name, and the package for CPUs has another.
        own = Path(folder, "vllm-0.32.0+cpu.dist-info")
        own.mkdir()
        (own / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
        path = os.pathsep.join((os.environ.get("PYTHONPATH", ""), folder))
        log = Path(folder, "log")
        with log.open("w") as out:
            served = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.cli.main", *words],
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": path},
            )
        try:
            return {**_asked(f"http://127.0.0.1:{port}", folder, served, log), "log": log.read_text()}
        finally:
            served.terminate()
            served.wait(120)


def _asked(url: str, model: str, served: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            break
        except OSError:
            if served.poll() is not None:
                raise RuntimeError(log.read_text()[-3000:]) from None
            time.sleep(1)
    prompt = text("http", 1000)
    body = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0, "return_token_ids": True}
    cached = []
    for _ in range(2):
        question = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(question, timeout=600) as answer:
            details = json.load(answer)["usage"]["prompt_tokens_details"] or {}
            cached.append(details.get("cached_tokens", 0))
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return {"cached": cached, "metrics": [line for line in lines if line.startswith("statemark_")]}


if __name__ == "__main__":
    print("RESULT " + json.dumps({"ranks": ranks, "http": http}[sys.argv[1]]()))
