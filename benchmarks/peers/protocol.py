"""How the driver talks to an engine in its own process: one JSON object a line, on a pipe that nothing else writes to.

Runs in every engine's environment, so it needs the standard library only and Python 3.10.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, TextIO


@dataclass(frozen=True)
class Job:
    """Prompts to run at once, and how many tokens each must produce. What is timed is the whole call."""

    prompts: list[list[int]]
    output_tokens: int

    def check(self, produced: list[int]) -> None:
        """An engine that stopped early did other work than asked; its time would be a wrong figure."""
        if produced != [self.output_tokens] * len(self.prompts):
            raise RuntimeError(f"asked for {self.output_tokens} tokens of {len(self.prompts)} streams, got {produced}")


class Engine:
    """What each worker implements."""

    def __init__(self, model: str, threads: int, max_model_len: int, max_streams: int, dtype: str) -> None:
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        raise NotImplementedError

    def run(self, job: Job) -> float:
        """Run the job and return its wall seconds."""
        raise NotImplementedError


def serve(engine_class: type[Engine]) -> None:
    """Answer jobs from standard input until it closes. Only answers go to standard output; libraries use stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-streams", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    args = parser.parse_args()
    engine = engine_class(args.model, args.threads, args.max_model_len, args.max_streams, args.dtype)
    _send(answers, engine.facts())
    for line in sys.stdin:
        _send(answers, {"seconds": engine.run(Job(**json.loads(line)))})


def _send(stream: TextIO, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


def encode(job: Job) -> str:
    return json.dumps(asdict(job)) + "\n"
