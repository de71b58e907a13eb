"""An engine in a process of its own, spoken to through the worker protocol."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from protocol import Job, encode

HERE = Path(__file__).resolve().parent


class Worker:
    """Started at once; `facts` is what it says of itself. `variables` are added to its environment."""

    def __init__(self, python: Path | str, script: str, model: Path, options: list[str], **variables: str) -> None:
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
