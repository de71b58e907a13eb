"""Results as one HTML page: a table, bars for each figure, and curves of the times. No script, nothing from outside.

Colours repeat what labels say. Equal results give equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from statemark.simulate.scenario import Result
from statemark.simulate.server import Outcome

_WIDTH, _LEFT, _BAR = 900, 190, 22
_COLOURS = ("#3b6ea8", "#c9792b", "#2f8a57", "#8a4fa0", "#b03a48", "#5d6b1f", "#3d8f95", "#7a5a3a")
_STYLE = """
body { font: 15px/1.5 ui-sans-serif, Helvetica, Arial, sans-serif; margin: 2em auto; max-width: 960px; padding: 0 1em;
  color: #222; background: #fff }
table { border-collapse: collapse; font-size: 13px; width: 100% } th, td { padding: 3px 8px; text-align: right }
th:first-child, td:first-child { text-align: left } tr { border-bottom: 1px solid #ddd } h2 { font-size: 1.1em }
svg { width: 100%; height: auto } text { font-size: 12px; fill: currentColor } .note { color: #666 }
.axis { stroke: #999; stroke-width: 1 } .bad { color: #b00 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } .note { color: #aaa } }
"""
_FIGURES: tuple[tuple[str, Callable[[Result], float | None], str], ...] = (
    ("Hit rate", lambda r: 100 * r.hit_rate, "{:.1f} %"),
    ("Prompt tokens computed", lambda r: float(r.computed), "{:,.0f}"),
    ("Steps", lambda r: float(r.steps), "{:,.0f}"),
    ("TTFT, P90 (s)", lambda r: r.ttft[1] if r.ttft else None, "{:,.3f}"),
    ("1 / P90 of end-to-end seconds a token", lambda r: r.per_p90, "{:,.3f}"),
)


def label(result: Result) -> str:
    return f"{result.rule} @ {result.budget}"


def draw_page(title: str, notes: Sequence[str], results: Sequence[tuple[Result, Outcome]]) -> str:
    """The whole page. `notes`: lines about trace, model and cost that a reader needs to repeat it."""
    body = "\n".join(_body(title, notes, results))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _body(title: str, notes: Sequence[str], results: Sequence[tuple[Result, Outcome]]) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield from (f'<p class="note">{escape(note)}</p>' for note in notes)
    yield _table([r for r, _ in results])
    for name, value, form in _FIGURES:
        yield f"<h2>{escape(name)}</h2>"
        yield _bars([r for r, _ in results], value, form)
    yield "<h2>Time to the first token, over requests</h2>"
    yield _curves([(r, list(o.ttft.values())) for r, o in results])
    yield "<h2>End-to-end time, over requests</h2>"
    yield _curves([(r, list(o.whole.values())) for r, o in results])


def _table(results: Sequence[Result]) -> str:
    head = (
        "rule", "budget", "hit rate", "computed", "steps", "TTFT P50", "P90", "P99", "end to end P50", "P90", "P99",
        "1/P90", "preempted", "never ran", "wrong states",
    )  # fmt: skip
    rows = []
    for r in results:
        ttft = [f"{v:,.3f}" for v in r.ttft] if r.ttft else ["-"] * 3
        whole = [f"{v:,.3f}" for v in r.whole] if r.whole else ["-"] * 3
        cells = [
            escape(r.rule), f"{r.budget:,}", f"{100 * r.hit_rate:.2f} %", f"{r.computed:,}", f"{r.steps:,}",
            *ttft, *whole, "-" if r.per_p90 is None else f"{r.per_p90:,.3f}", f"{r.preempted:,}",
            _alarm(r.never), _alarm(r.wrong),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return "<table><tr>" + "".join(f"<th>{h}</th>" for h in head) + "</tr>" + "\n".join(rows) + "</table>"


def _alarm(count: int) -> str:
    return f'<b class="bad">{count:,}</b>' if count else "0"


def _bars(results: Sequence[Result], value: Callable[[Result], float | None], form: str) -> str:
    values = [value(r) for r in results]
    most = max((v for v in values if v is not None), default=0.0) or 1.0
    parts = []
    for row, (result, figure) in enumerate(zip(results, values, strict=True)):
        y = row * _BAR
        parts.append(f'<text x="0" y="{y + 15}">{escape(label(result))}</text>')
        if figure is None:
            parts.append(f'<text x="{_LEFT}" y="{y + 15}">none ended</text>')
            continue
        width = figure / most * (_WIDTH - _LEFT - 120)
        colour = _COLOURS[row % len(_COLOURS)]
        parts.append(f'<rect x="{_LEFT}" y="{y + 4}" width="{width:.1f}" height="{_BAR - 8}" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 15}">{form.format(figure)}</text>')
    height = len(results) * _BAR + 4
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _curves(rows: Sequence[tuple[Result, list[float]]]) -> str:
    """Seconds (logarithmic) below which a share of the requests lies."""
    shown = [(i, r, np.sort(np.array(v))) for i, (r, v) in enumerate(rows) if v]
    if not shown:
        return '<p class="note">no request came to an end</p>'
    low = max(1e-4, min(float(v[0]) for _, _, v in shown))
    high = max(max(float(v[-1]) for _, _, v in shown), 2 * low)
    plot, left, right = 260, 50, _WIDTH - 190
    scale = np.log(high / low)

    def x(seconds: float) -> float:
        return float(left + (right - left) * np.log(max(seconds, low) / low) / scale)

    parts = [f'<line class="axis" x1="{left}" x2="{right}" y1="{plot}" y2="{plot}"/>']
    for share in (0, 25, 50, 75, 100):
        y = plot - share * (plot - 20) / 100
        parts.append(f'<text x="0" y="{y + 4:.1f}">{share} %</text>')
        parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke-opacity=".25"/>')
    ticks = (10.0**k for k in range(-4, 7))
    parts += [f'<text x="{x(tick):.1f}" y="{plot + 16}">{tick:g} s</text>' for tick in ticks if low <= tick <= high]
    for row, (index, result, values) in enumerate(shown):
        colour = _COLOURS[index % len(_COLOURS)]
        shares = np.linspace(0, 1, 101)
        points = " ".join(
            f"{x(float(v)):.1f},{plot - s * (plot - 20):.1f}"
            for s, v in zip(shares, np.quantile(values, shares), strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        y = 24 + 18 * row
        parts.append(f'<rect x="{right + 14}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{right + 30}" y="{y}">{escape(label(result))}</text>')
    height = max(plot + 24, 40 + 18 * len(shown))
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
