"""A probe's result as one HTML page without anything from outside: the verdict, and the threshold matrix as a picture.

Rows are prompts, columns the runs of each; colour is the size of the shift beside what editing a token makes, and words
say the same. Equal results give equal bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from statemark.probe.judge import WORDS, Observation
from statemark.probe.report import (
    ability_words,
    boundary_words,
    cost_words,
    grid_words,
    scale_words,
    verdict_words,
)
from statemark.probe.run import Result

_ROW, _CELL, _LEFT = 26, 120, 400
_LEVELS = 5  # of colour, a factor of ten each
_STYLE = """
body { font-family: ui-sans-serif, Helvetica, Arial, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; line-height: 1.45 }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.exact { color: #14713a } .drift { color: #8a5a00 } .contaminated { color: #b00020 } .invalid { color: #555 }
table { border-collapse: collapse } td { padding: .15rem .8rem .15rem 0; vertical-align: top }
svg text { font-size: 12px; fill: #222 } svg .small { font-size: 11px; fill: #555 } svg .on { fill: #fff }
.same { fill: #dff0e4; stroke: #14713a } .l1 { fill: #fdf0c8 } .l2 { fill: #f8d27a } .l3 { fill: #f0a13c }
.l4 { fill: #dd5f2c } .l5 { fill: #a81020 } .none { fill: none; stroke: #999; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #161616 } svg text { fill: #ddd } svg .small { fill: #aaa }
  .exact { color: #5fc98a } .drift { color: #e0b050 } .contaminated { color: #ff6b7a } .invalid { color: #aaa }
  .same { fill: #17402a } svg .dark { fill: #222 }
}
"""


def draw_page(result: Result) -> str:
    verdict = result.verdict
    title = f"{verdict.kind}: {result.server['name']}, {result.server['model']}"
    body = "\n".join(_body(result))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head><body>\n<h1>Is the prefix cache right?</h1>\n{body}\n</body></html>\n"
    )


def _body(result: Result) -> Iterator[str]:
    verdict = result.verdict
    yield f'<p class="{verdict.kind}"><strong>{escape(verdict_words(verdict.kind))}</strong></p><ul>'
    for reason in verdict.reasons:
        yield f"<li>{escape(reason)}</li>"
    if result.boundary is not None:
        yield f"<li>{escape(boundary_words(result.boundary))}</li>"
    if result.options.beyond_eos:
        yield "<li>answers were forced beyond their end of turn: sizes say nothing about what users see</li>"
    yield "</ul><table>"
    facts = (
        ("server", f"{result.server['name']} at {result.server['url']}"),
        ("model", result.server["model"]),
        ("asks", ability_words(result.abilities)),
        ("blocks", grid_words(result.grid)),
        ("one token edited", f"moves log-probabilities by {scale_words(result.scale)}"),
        ("another document", f"moves them by {result.scale.foreign:.3g}"),
        ("without hits", f"they move by up to {verdict.control:.3g}"),
        ("cost", cost_words(result.cost, result.expected)),
        *(("note", note) for note in result.notes),
    )  # fmt: skip
    for name, value in facts:
        yield f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>"
    yield "</table><h2>Every request beside its cold reference</h2>"
    yield _matrix(result)


def _matrix(result: Result) -> str:
    rows: dict[tuple[str, str], list[Observation]] = {}
    order = list(WORDS)
    for o in sorted(result.observations, key=lambda o: (order.index(o.cell), o.shared, o.prompt)):
        rows.setdefault((o.cell, o.label), []).append(o)
    columns = max((len(found) for found in rows.values()), default=0)
    width, height = _LEFT + columns * _CELL + 10, 30 + len(rows) * _ROW + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="threshold matrix">'
    ]
    for number, ((cell, label), found) in enumerate(rows.items()):
        y = 10 + number * _ROW
        parts.append(f'<text x="0" y="{y + 16}">{escape(cell)}</text>')
        parts.append(f'<text class="small" x="90" y="{y + 16}">{escape(label)}</text>')
        parts += [_square(o, _LEFT + i * _CELL, y, result) for i, o in enumerate(found)]
    parts += _legend(20 + len(rows) * _ROW)
    return "\n".join([*parts, "</svg>"])


def _square(o: Observation, x: int, y: int, result: Result) -> str:
    scale = result.scale.edit(o.behind) or result.scale.foreign or 1.0
    if not o.valid:
        kind, text = "none", "invalid"
    elif o.shift.exact:
        kind, text = "same", "equal"
    else:
        kind, text = f"l{_level(o.shift.size / scale)}", f"{o.shift.size:.2g}"
    how = "?" if o.cached is None else f"hit {o.cached:,}" if o.cached else "miss"
    title = f"run {o.run}, {how}: {o.why or o.digest[:16]}"
    ink = "on" if kind in ("l4", "l5") else "dark" if kind.startswith("l") else ""
    size = f'width="{_CELL - 6}" height="{_ROW - 4}"'
    return (
        f'<g><title>{escape(title)}</title><rect class="{kind}" x="{x}" y="{y}" {size}/>'
        f'<text class="{ink}" x="{x + 6}" y="{y + 15}">{text}</text>'
        f'<text class="small {ink}" x="{x + _CELL - 12}" y="{y + 15}" text-anchor="end">{how}</text></g>'
    )


def _level(ratio: float) -> int:
    """1 for next to nothing to 5 for as much as the edited token."""
    return max(1, min(_LEVELS, _LEVELS + math.floor(math.log10(ratio) + 0.5))) if ratio > 0 else 1


def _legend(y: int) -> Iterator[str]:
    x = 0
    for kind, text in (
        ("same", "equal bit for bit"),
        ("l1", "1/10,000 of an edited token"),
        ("l3", "1/100"),
        ("l5", "as much as an edited token"),
        ("none", "invalid"),
    ):
        yield f'<rect class="{kind}" x="{x}" y="{y}" width="16" height="12"/>'
        yield f'<text class="small" x="{x + 22}" y="{y + 10}">{text}</text>'
        x += 50 + 7 * len(text)
