"""Starts one server of each engine on a free port, waits until it answers, and stops it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from engines import ENGINES
from environments import Peers
from llama_cpp import environment
from worker import HERE

import models

START_SECONDS = 600.0


@dataclass(frozen=True)
class Server:
    """How to start it; `{port}` in `command` is filled in."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)


def server_of(name: str, peers: Peers, model: Path, *, threads: int, context: int, slots: int) -> Server:
    """`context`: tokens that a sequence may have; `slots`: sequences at once. Prefix caches are on, as they come."""
    kind = ENGINES[name]
    if kind.family == "statemark":
        stored = model if kind.weights == "bfloat16" else models.quantized(model, kind.weights)
        command = [
            str(Path(sys.executable).with_name("statemark")),
            "serve",
            "--model",
            str(stored),
            "--port",
            "{port}",
        ]
        sizes = ["--threads", str(threads), "--max-model-len", str(context), "--max-num-seqs", str(slots)]
        return Server([*command, *sizes])
    if kind.family == "vllm":
        command = [str(peers.vllm_python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        command += ["--enable-prefix-caching", "--enable-prompt-tokens-details", "--enforce-eager"]
        command += ["--dtype", kind.weights, "--max-model-len", str(context), "--max-num-seqs", str(slots)]
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": str(HERE / "stand_in"),
        }
        return Server([*command, "--port", "{port}"], variables)
    if kind.family == "llama":
        command = [str(peers.llama_bin / "llama-server"), "-m", str(models.gguf(model, kind.weights, peers))]
        # Its context is shared out among the slots.
        sizes = ["-t", str(threads), "-c", str(slots * context), "-np", str(slots)]
        return Server([*command, *sizes, "--port", "{port}"], environment(peers.llama_bin))
    raise SystemExit(f"error: {name} has no server here")


@contextmanager
def running(server: Server) -> Iterator[str]:
    """Its address, once it is ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [part.format(port=port) for part in server.command]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | server.variables)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process)
            yield url
        except BaseException:
            log.seek(0)
            print(log.read()[-4000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server was not ready after {START_SECONDS:.0f} seconds")
