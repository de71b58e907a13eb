"""From runs to figures: medians, spread, the limit beside each, as a table or as plain data. Measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from statemark.bench.limits import Limits
from statemark.bench.measure import Cell, Run
from statemark.bench.work import Work


@dataclass(frozen=True)
class Figure:
    """One line of the report, in tokens a second. `limit` is what the machine allows, `share` the part reached."""

    name: str
    median: float
    low: float
    high: float
    limit: float
    share: float
    first_token_ms: float
    runs: list[float]

    @classmethod
    def of(cls, cell: Cell, runs: Sequence[Run], work: Work, limits: Limits) -> Figure:
        rates = sorted(run.rate for run in runs)
        median = statistics.median(rates)
        limit = (
            work.prefill_limit(limits.product_rate)
            if cell.kind == "prefill"
            else work.decode_limit(limits.product_rate, limits.read_rate, cell.streams)
        )
        first = statistics.median(run.first_seconds for run in runs)
        return cls(
            name=cell.name,
            median=round(median, 2),
            low=round(rates[0], 2),
            high=round(rates[-1], 2),
            limit=round(limit, 2),
            share=round(median / limit, 3),
            first_token_ms=round(first * 1000, 1),
            runs=[round(run.rate, 2) for run in runs],
        )


@dataclass(frozen=True)
class BenchReport:
    model: dict[str, Any]
    machine: dict[str, Any]
    settings: dict[str, Any]
    limits: Limits
    figures: list[Figure]

    def to_json(self) -> dict[str, Any]:
        limits = {
            "product_gflops": round(self.limits.product_rate / 1e9, 1),
            "read_gb_per_second": round(self.limits.read_rate / 1e9, 2),
        }
        return {
            "model": self.model,
            "machine": self.machine,
            "settings": self.settings,
            "limits": limits,
            "figures": [asdict(figure) for figure in self.figures],
        }


def make_report(
    runs: Mapping[Cell, Sequence[Run]],
    *,
    work: Work,
    limits: Limits,
    model: dict[str, Any],
    machine: dict[str, Any],
    settings: dict[str, Any],
) -> BenchReport:
    figures = [Figure.of(cell, found, work, limits) for cell, found in runs.items()]
    return BenchReport(model, machine, settings, limits, figures)


def render_table(report: BenchReport) -> str:
    """Plain text, readable without colour and safe to paste."""
    rows = [("", "tok/s", "spread", "limit", "of limit", "first token"), *map(_row, report.figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    facts = report.to_json()
    limits, machine, model = facts["limits"], report.machine, report.model
    lines += [
        "",
        f"model    {model['name']}, {model['dtype']}, {model['weight_bytes'] / 1e9:.2f} GB of weights",
        f"engine   statemark {machine['statemark']}, {model['isa']}, {model['threads']} threads",
        f"machine  {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB",
        f"limits   {limits['product_gflops']:.0f} GFLOP/s from registers, "
        f"{limits['read_gb_per_second']:.1f} GB/s read; linear layers alone, so no engine can pass them",
    ]
    return "\n".join(lines)


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        f"{figure.median:.1f}",
        f"{figure.low:.1f} - {figure.high:.1f}",
        f"{figure.limit:.1f}",
        f"{figure.share:.0%}",
        f"{figure.first_token_ms:,.0f} ms",
    )
