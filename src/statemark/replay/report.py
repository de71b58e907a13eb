"""A replay's figures as a table for a person and as one object for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from statemark.replay.compare import compare
from statemark.replay.metrics import PERCENTILES, per_turn, summary
from statemark.replay.records import Record
from statemark.words import counted

_TIMES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2EL", "e2el"))
_COUNTS = (
    ("Successful requests", "completed"),
    ("Failed requests", "failed"),
    ("Benchmark duration (s)", "duration"),
    ("Total input tokens", "total_input_tokens"),
    ("Total generated tokens", "total_output_tokens"),
    ("Request throughput (req/s)", "request_throughput"),
    ("Output token throughput (tok/s)", "output_throughput"),
    ("Total token throughput (tok/s)", "total_token_throughput"),
    ("1/P90 E2EL per output token (1/s)", "inverse_p90_e2el_per_output_token"),
    ("Cached tokens", "cached_tokens"),
    ("Computed tokens", "computed_tokens"),
    ("Ideal cached tokens", "ideal_cached_tokens"),
    ("Lost tokens", "lost_tokens"),
)


def figures(head: Mapping[str, Any], runs: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """`runs`: records by the name of a target; the first is what others are compared with."""
    names = list(runs)
    return {
        "head": dict(head),
        "targets": {name: {**summary(records), "turns": per_turn(records)} for name, records in runs.items()},
        "compare": {name: compare(runs[names[0]], runs[name]) for name in names[1:]},
    }


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    names = list(data["targets"])
    width = max(14, *(len(n) + 2 for n in names)) if names else 14
    yield f"{'':36}" + "".join(f"{name:>{width}}" for name in names)
    for words, key in _COUNTS:
        yield f"{words:36}" + "".join(f"{_number(data['targets'][n][key]):>{width}}" for n in names)
    for words, key in _TIMES:
        for kind in ("mean", *(f"p{p}" for p in PERCENTILES)):
            title = f"{'Mean' if kind == 'mean' else kind.upper()} {words} (ms)"
            yield f"{title:36}" + "".join(f"{_number(data['targets'][n][f'{kind}_{key}_ms']):>{width}}" for n in names)
    for name in names:
        for kind, count in data["targets"][name]["errors"].items():
            words = data["targets"][name]["error_words"][kind]
            yield f"errors at {name}: {count} {kind}{f', first: {words}' if words else ''}"
    for name in names:
        yield f"turns at {name}"
        for row in data["targets"][name]["turns"]:
            yield (
                f"  {row['turn']:>4}{row['requests']:>6} requests   TTFT P50 {_number(row['p50_ttft_ms'])} ms, P90 "
                f"{_number(row['p90_ttft_ms'])} ms   cached {row['cached_tokens']:,} of {row['ideal_cached_tokens']:,}"
            )
    for name, found in data["compare"].items():
        yield (
            f"{name} beside {names[0]}: {counted(found['pairs'], 'pair')}, {counted(found['starts'], 'start')}, "
            f"{counted(found['rounds'], 'round')}"
        )
        for measure in ("ttft", "e2el"):
            if found[measure] is not None:
                r = found[measure]
                yield f"  {measure.upper()} x {r['ratio']:.3f} (95 %: {r['low']:.3f} to {r['high']:.3f})"
        if found["starts"] < 2:
            yield "  one start only: the interval says nothing about another start of the servers"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
