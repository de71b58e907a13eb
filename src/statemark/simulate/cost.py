"""How long a step takes, and a request before its first: five numbers, given or fitted to a measured server.

    seconds of a step = step + token * computed + request * decoding + context * attended

`computed`: tokens run in the step; `decoding`: requests that write one token; `attended`: for every token run, the
tokens before it, added up. `begin`: seconds from sending a request to its place in the queue (connection, template,
tokenizer), during which steps of others go on. A request that arrives during a step waits for its end.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statemark.errors import ConfigurationError

FIELDS = ("step", "token", "request", "context", "begin")


@dataclass(frozen=True)
class Cost:
    """Seconds. The default is a round figure for one large GPU, good for comparing rules and nothing else."""

    step: float = 5e-3
    token: float = 4e-5
    request: float = 5e-5
    context: float = 2e-10
    begin: float = 0.0

    def seconds(self, computed: float, decoding: int, attended: float) -> float:
        return self.step + self.token * computed + self.request * decoding + self.context * attended

    def decode(self, steps: int, requests: int, width: int, attended: float, growth: float) -> float:
        """`steps` steps in a row in which all requests decode: `attended` tokens in the first, `growth` more a step."""
        return (
            steps * self.seconds(requests * width, requests, attended) + self.context * growth * steps * (steps - 1) / 2
        )


def parse_cost(text: str) -> Cost:
    """`step=0.005,token=4e-5,...`; what isn't named is zero."""
    found: dict[str, float] = dict.fromkeys(FIELDS, 0.0)
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if name.strip() not in found or not 0 <= number < math.inf:
            raise ConfigurationError(
                f"--cost: {part!r} is no part of a cost", hint=f"like step=0.005,token=4e-5; parts: {', '.join(FIELDS)}"
            )
        found[name.strip()] = number
    if not any(found[name] for name in FIELDS if name != "begin"):
        raise ConfigurationError("--cost: a step that takes no time can't be simulated")
    return Cost(**found)


@dataclass(frozen=True)
class Fit:
    """`error` is the median of |predicted / measured - 1| over all measured times."""

    cost: Cost
    measured: int
    error: float


def fit_cost(path: Path, budget: int) -> Fit:
    """From requests that a server answered one at a time: what `statemark replay --concurrency 1 --out` wrote, or JSON
    lines with `prompt`, `cached`, `output` (tokens), `ttft` and `e2e` (seconds). `budget`: the tokens of its steps.

    Least squares of relative errors, without negative parts.
    """
    rows: list[list[float]] = []
    times: list[float] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = _measured(json.loads(line))
            if values is not None:
                _rows(values, budget, rows, times)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{path.name}:{number}: {f'there is no {error}' if isinstance(error, KeyError) else error}",
                hint="give a file of `statemark replay --out`, or lines with prompt, cached, output, ttft and e2e",
            ) from None
    if len(rows) < len(FIELDS):
        raise ConfigurationError(f"{path.name}: {len(rows)} times are too few to fit {len(FIELDS)} numbers to")
    measured = np.array(times)
    scaled = np.array(rows) / measured[:, None]
    parts = _not_negative(scaled, np.ones(len(times)))
    off = float(np.median(np.abs(scaled @ parts - 1)))
    return Fit(Cost(*(float(p) for p in parts)), len(times), off)


def _measured(line: Any) -> dict[str, Any] | None:
    """One request as five numbers; None for a replay's head, its warm-up and what went wrong in it."""
    if not isinstance(line, dict):
        raise ValueError("not a JSON object")
    if "head" in line:
        return None
    record = line.get("record")
    if record is None:
        return line
    if record["error"] or record["warm_up"] or not record["arrivals"]:
        return None
    if record["cached"] is None:
        raise ValueError("the server doesn't say how many tokens it took from its cache")
    ends = {"ttft": record["arrivals"][0], "e2e": record["arrivals"][-1]}
    return {name: record[name] for name in ("prompt", "cached", "output")} | ends


def _rows(values: dict[str, Any], budget: int, rows: list[list[float]], times: list[float]) -> None:
    prompt, cached, output = int(values["prompt"]), int(values["cached"]), int(values["output"])
    ttft, whole = float(values["ttft"]), float(values["e2e"])
    if not 0 <= cached < prompt or output < 1 or not 0 < ttft <= whole:
        raise ValueError("cached must be below prompt, output at least 1, ttft above 0 and at most e2e")
    new = prompt - cached
    rows.append([-(-new // budget), new, 0, new * (prompt + cached) / 2, 1])
    times.append(ttft)
    steps = output - 1
    if steps and whole > ttft:
        rows.append([steps, steps, steps, steps * (prompt + output / 2), 0])
        times.append(whole - ttft)


def _not_negative(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Least squares with all parts at least 0: parts that would turn negative are left out, the worst first."""
    used = list(range(a.shape[1]))
    parts = np.zeros(a.shape[1])
    while used:
        scale = np.linalg.norm(a[:, used], axis=0)
        scale[scale == 0] = 1.0
        found = np.linalg.lstsq(a[:, used] / scale, b, rcond=None)[0] / scale
        if (found >= 0).all():
            parts[used] = found
            break
        del used[int(np.argmin(found * scale))]
    return parts
