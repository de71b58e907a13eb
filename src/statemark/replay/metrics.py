"""From records to figures, named as vLLM's `bench serve` names them. Pure.

TTFT: from sending to the first token. ITL: between tokens of one answer (tokens of one event arrive together, 0 apart).
TPOT: (E2EL - TTFT) / (output tokens - 1). E2EL: from sending to the last byte. Percentiles are linear, as NumPy's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from statemark.replay.records import Record

PERCENTILES = (50, 90, 99)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Figures of one target's run without warm-up; times in ms, rates per second, tokens as counts."""
    counted = [r for r in records if not r.warm_up]
    good = [r for r in counted if r.good]
    duration = sum(map(_span, _rounds(counted).values()))
    told = [r for r in good if r.cached is not None]
    out: dict[str, Any] = {
        "completed": len(good),
        "failed": len(counted) - len(good),
        "errors": dict(sorted(Counter(r.error or "empty" for r in counted if not r.good).items())),
        "error_words": {r.error or "empty": r.words for r in reversed(counted) if not r.good},
        "duration": duration,
        "total_input_tokens": sum(r.prompt for r in good),
        "total_output_tokens": sum(r.output for r in good),
        "request_throughput": _rate(len(good), duration),
        "output_throughput": _rate(sum(r.output for r in good), duration),
        "total_token_throughput": _rate(sum(r.prompt + r.output for r in good), duration),
        "cached_tokens": sum(r.cached or 0 for r in told) if told else None,
        "computed_tokens": sum(r.prompt - (r.cached or 0) for r in told) if told else None,
        "ideal_cached_tokens": sum(r.ideal for r in good),
        "lost_tokens": sum(max(0, r.ideal - (r.cached or 0)) for r in told) if told else None,
    }
    for name, values in distributions(good).items():
        out |= _spread(name, values)
    per_token = [r.seconds / r.output for r in good if r.output]
    p90 = float(np.percentile(per_token, 90)) if per_token else 0.0
    out["inverse_p90_e2el_per_output_token"] = 1 / p90 if p90 > 0 else None
    return out


def distributions(good: Sequence[Record]) -> dict[str, list[float]]:
    """ttft, tpot, itl and e2el in ms."""
    return {
        "ttft": [1000 * r.ttft for r in good],
        "tpot": [1000 * (r.seconds - r.ttft) / (r.output - 1) for r in good if r.output > 1],
        "itl": [1000 * (b - a) for r in good for a, b in zip(r.arrivals, r.arrivals[1:], strict=False)],
        "e2el": [1000 * r.seconds for r in good],
    }


def per_turn(records: Sequence[Record]) -> list[dict[str, Any]]:
    """TTFT and reuse by the number of the turn, from 1."""
    rows = []
    for turn in sorted({r.turn for r in records}):
        good = [r for r in records if r.turn == turn and r.good and not r.warm_up]
        if good:
            row = {"turn": turn, "requests": len(good), "ideal_cached_tokens": sum(r.ideal for r in good),
                   "input_tokens": sum(r.prompt for r in good),
                   "cached_tokens": sum(r.cached or 0 for r in good)}  # fmt: skip
            rows.append(row | _spread("ttft", [1000 * r.ttft for r in good]))
    return rows


def _rounds(records: Sequence[Record]) -> dict[tuple[int, int], list[Record]]:
    found: dict[tuple[int, int], list[Record]] = defaultdict(list)
    for r in records:
        found[r.start, r.round].append(r)
    return found


def _span(records: Sequence[Record]) -> float:
    """Seconds from the first request sent to the last answer's end."""
    return max(r.at + r.seconds for r in records) - min(r.at for r in records)


def _spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {f"{kind}_{name}_ms": None for kind in ("mean", *(f"p{p}" for p in PERCENTILES))}
    found = np.percentile(values, PERCENTILES)
    out: dict[str, float | None] = {f"mean_{name}_ms": float(np.mean(values))}
    return out | {f"p{p}_{name}_ms": float(v) for p, v in zip(PERCENTILES, found, strict=True)}


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None
