"""An engine in a process of its own, spoken to through the worker protocol."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from protocol import Job, encode

HERE = Path(__file__).resolve().parent


class Worker:
    """Started at once; `facts` is what it says of itself. `variables` are added to its environment.

    Suspended while it has no job: a waiting engine that asks its own processes for news takes part of a core from the
    one that is measured.
    """

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
            process_group=0,  # its own, to be suspended with all that it starts
        )
        self.facts = self._answer()
        self._signal(signal.SIGSTOP)

    def run(self, job: Job) -> float:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        self.process.stdin.write(encode(job))
        self.process.stdin.flush()
        seconds = float(self._answer()["seconds"])
        self._signal(signal.SIGSTOP)
        return seconds

    def close(self) -> None:
        assert self.process.stdin is not None
        self._signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which the next answer says
            os.killpg(self.process.pid, number)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            tail = self.log.read()[-4000:].decode(errors="replace")
            raise RuntimeError(f"{' '.join(map(str, self.process.args))} ended:\n{tail}")  # type: ignore[arg-type]
        return dict(json.loads(line))
