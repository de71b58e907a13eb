"""llama.cpp through its own llama-bench: one process a measurement, which loads, warms up and times by itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class LlamaCpp:
    binaries: Path
    model: Path
    threads: int
    version: str

    def command(self, cell: str, tokens: int) -> list[str]:
        """llama-bench warms up with the same work before it times one run of it."""
        what = ["-p", str(tokens), "-n", "0"] if cell == "prefill" else ["-p", "0", "-n", str(tokens)]
        command = [str(self.binaries / "llama-bench"), "-m", str(self.model), "-t", str(self.threads)]
        # A batch as large as the prompt: the default of 2048, with micro-batches of 512, is what llama.cpp runs with.
        return [*command, *what, "-r", "1", "-o", "json"]

    def rate(self, cell: str, tokens: int) -> float:
        return float(self._run(cell, tokens)["avg_ts"])

    def facts(self) -> dict[str, Any]:
        row = self._run("decode", 1)
        return {
            "version": self.version,
            "backends": row["backends"],
            "threads": row["n_threads"],
            "model_type": row["model_type"],
        }

    def _run(self, cell: str, tokens: int) -> dict[str, Any]:
        variables = os.environ | {"LD_LIBRARY_PATH": str(self.binaries)}
        done = subprocess.run(self.command(cell, tokens), env=variables, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"llama-bench failed with status {done.returncode}:\n{done.stderr[-2000:]}")
        [row] = json.loads(done.stdout)
        return dict(row)
