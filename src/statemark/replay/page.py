"""A replay as one HTML page without anything from outside: distributions, turns, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from statemark.replay.metrics import distributions
from statemark.replay.records import Record
from statemark.replay.report import lines

_W, _H, _LEFT = 560, 220, 60
_DASHES = ("", "7 4", "2 3", "9 3 2 3")
_COLOURS = ("#1769aa", "#b3541e", "#2e7d32", "#6a1b9a")
_STYLE = """
body { font-family: ui-sans-serif, Helvetica, Arial, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff } pre { overflow-x: auto } svg text { font-size: 11px; fill: #444 }
svg .axis { stroke: #999; fill: none } svg { margin: .5rem 1rem .5rem 0 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #161616 } svg text { fill: #bbb } }
"""


def draw_page(data: Mapping[str, Any], runs: Mapping[str, Sequence[Record]]) -> str:
    good = {name: [r for r in records if r.good and not r.warm_up] for name, records in runs.items()}
    parts = []
    for key, words in (("ttft", "TTFT"), ("e2el", "E2EL"), ("itl", "ITL"), ("tpot", "TPOT")):
        curves = {name: sorted(distributions(records)[key]) for name, records in good.items()}
        parts.append(_plot(f"{words} (ms), share of requests below", {n: _cumulative(v) for n, v in curves.items()}))
    for field, words in (("p50_ttft_ms", "TTFT P50 (ms)"), ("p90_ttft_ms", "TTFT P90 (ms)")):
        rows = {n: [(r["turn"], r[field]) for r in data["targets"][n]["turns"]] for n in runs}
        parts.append(_plot(f"{words} by turn", rows))
    reuse = {
        n: [(r["turn"], r["cached_tokens"] / max(1, r["ideal_cached_tokens"])) for r in data["targets"][n]["turns"]]
        for n in runs
    }
    parts.append(_plot("cached of ideal by turn", reuse))
    legend = " ".join(
        f'<span style="color:{_COLOURS[i % 4]}">{"&#9473;" if not _DASHES[i % 4] else "&#9477;"} {escape(name)}</span>'
        for i, name in enumerate(runs)
    )
    table = escape("\n".join(lines(data)))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>statemark replay</title>\n'
        f"<style>{_STYLE}</style></head><body>\n<h1>Replay</h1>\n<p>{legend}</p>\n" + "\n".join(parts) +
        f"\n<pre>{table}</pre>\n</body></html>\n"
    )  # fmt: skip


def _cumulative(values: Sequence[float]) -> list[tuple[float, float]]:
    return [(v, (i + 1) / len(values)) for i, v in enumerate(values)]


def _plot(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    points = [p for curve in curves.values() for p in curve]
    top_x = max((x for x, _ in points), default=0.0) or 1.0
    top_y = max((y for _, y in points), default=0.0) or 1.0
    parts = [
        f'<svg viewBox="0 0 {_W} {_H}" width="{_W}" height="{_H}" role="img" aria-label="{escape(title)}">'
        f'<text x="{_LEFT}" y="14">{escape(title)}</text>'
        f'<path class="axis" d="M{_LEFT} 24V{_H - 24}H{_W - 10}"/>'
        f'<text x="{_LEFT - 6}" y="32" text-anchor="end">{top_y:.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{_H - 24}" text-anchor="end">0</text>'
        f'<text x="{_W - 10}" y="{_H - 8}" text-anchor="end">{top_x:.4g}</text>'
    ]
    for i, curve in enumerate(curves.values()):
        if curve:
            path = "L".join(f"{_LEFT + x / top_x * (_W - _LEFT - 20):.1f} {_H - 24 - y / top_y * (_H - 56):.1f}"
                            for x, y in curve)  # fmt: skip
            parts.append(
                f'<path d="M{path}" fill="none" stroke="{_COLOURS[i % 4]}" stroke-width="1.8" '
                f'stroke-dasharray="{_DASHES[i % 4]}"/>'
            )
    return "".join([*parts, "</svg>"])
