"""Two runs of the same trace side by side: each request with itself, and how sure the ratio is. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from statemark.replay.records import Record

_DRAWS = 2000  # of the bootstrap
MEASURES: dict[str, Callable[[Record], float]] = {"ttft": lambda r: r.ttft, "e2el": lambda r: r.seconds}


def compare(base: Sequence[Record], other: Sequence[Record], seed: int = 0) -> dict[str, Any]:
    """Geometric mean of other/base over paired requests, with a 95 % interval.

    The interval draws starts of the servers and, within them, sessions of a round: requests of one session, and
    sessions of one start, are not independent. Of one start rounds are drawn in their place; `starts` tells that.
    """
    pairs = _pairs(base, other)
    starts, rounds = ({key[:depth] for key, _, _ in pairs} for depth in (1, 2))
    out: dict[str, Any] = {"pairs": len(pairs), "starts": len(starts), "rounds": len(rounds)}
    for name, value in MEASURES.items():
        logs: dict[int, dict[tuple[int, str], list[float]]] = defaultdict(lambda: defaultdict(list))
        for (start, number, session, _), a, b in pairs:
            if value(a) > 0 and value(b) > 0:
                ratio = float(np.log(value(b) / value(a)))
                logs[start if len(starts) > 1 else number][number, session].append(ratio)
        out[name] = _interval(logs, seed)
    return out


_Key = tuple[int, int, str, int]  # start, round, session, turn


def _pairs(base: Sequence[Record], other: Sequence[Record]) -> list[tuple[_Key, Record, Record]]:
    known = {(r.start, r.round, *r.key): r for r in base if r.good and not r.warm_up}
    found = [((r.start, r.round, *r.key), r) for r in other if r.good and not r.warm_up]
    return [(key, known[key], r) for key, r in sorted(found, key=lambda pair: pair[0]) if key in known]


def _interval(logs: dict[int, dict[tuple[int, str], list[float]]], seed: int) -> dict[str, float] | None:
    sums = [np.array([[sum(v), len(v)] for v in sessions.values()]) for sessions in logs.values() if sessions]
    if not sums:
        return None
    draw = np.random.default_rng(seed)
    means = np.empty(_DRAWS)
    for i in range(_DRAWS):
        picked = [sums[j] for j in draw.integers(len(sums), size=len(sums))]
        total = np.sum([s[draw.integers(len(s), size=len(s))].sum(axis=0) for s in picked], axis=0)
        means[i] = total[0] / total[1]
    whole = np.sum([s.sum(axis=0) for s in sums], axis=0)
    low, high = np.percentile(means, (2.5, 97.5))
    return {"ratio": float(np.exp(whole[0] / whole[1])), "low": float(np.exp(low)), "high": float(np.exp(high))}
