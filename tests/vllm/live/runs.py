"""Runs experiments in processes of their own, each engine once a test session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
STANDIN = ROOT / "tests" / "align" / "record" / "standin"  # the torchvision that a text model imports
LIMIT = 3600  # seconds; a hang must end, a slow machine must not fail


def environment(**changes: str) -> dict[str, str]:
    path = os.pathsep.join(p for p in (str(STANDIN), str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    # Nothing is looked up on a network, and threads that wait for each other don't spin.
    changes = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **changes}
    clean = {k: v for k, v in os.environ.items() if k != "STATEMARK_VLLM"}
    return {**clean, "PYTHONPATH": path, **changes}


# What is asked of each engine, in one run of it: starting takes as long as most experiments.
EXPERIMENTS = {
    "qwen3-next": "reuse",
    "qwen3.5": "reuse,dense,outputs",
    "qwen3.5-mtp": "outputs",
    "qwen3.5-hidden": "smaller_block",
}


@cache
def on_engine(case: str) -> dict[str, Any]:
    """What `tests.vllm.live.experiments` finds on one engine, with its log under "log"."""
    return script("tests.vllm.live.experiments", case, EXPERIMENTS[case])


def script(module: str, *arguments: str, **changes: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=ROOT,
        env=environment(**changes),
    )
    answer = next((line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")), None)
    if answer is None:
        raise RuntimeError(f"{module} {' '.join(arguments)}: {done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(answer)
    found.setdefault("log", done.stdout + done.stderr)  # a server's own, where there is one
    return found
