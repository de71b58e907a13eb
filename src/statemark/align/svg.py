"""A plan as an SVG: the state grid, chunk ends, kept, missing and wrong states, hit and recomputed spans, a row a rule.

Shapes carry the meaning beside colour, and every mark has a title. Equal plans give equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from statemark.align.planner import Plan, PromptPlan

_LEFT, _WIDTH, _RIGHT = 110, 800, 150
_ROW, _GAP, _HEAD = 34, 26, 30
_MOST_LINES = 400  # of the grid: beyond that they would paint the picture grey
_STYLE = """
text { font-family: ui-sans-serif, Helvetica, Arial, sans-serif; font-size: 12px; fill: #222 }
.small { font-size: 10px; fill: #666 }
.hit { fill: url(#hatch); stroke: #7a9cc6; stroke-width: .5 }
.run { fill: #f2b56b; stroke: #b0741e; stroke-width: .5 }
.left { fill: none; stroke: #c33; stroke-dasharray: 3 3 }
.grid { stroke: #bbb; stroke-width: .7 }
.end { stroke: #5c3a06; stroke-width: 1.4 }
.kept { fill: #1f7a3d }
.missing { fill: #fff; stroke: #888; stroke-width: 1.2 }
.stale { stroke: #c11; stroke-width: 2.2; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .small { fill: #aaa } .missing { fill: none } .grid { stroke: #555 }
}
"""
_HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#dce8f7"/><line x1="0" y1="0" x2="0" y2="6" stroke="#7a9cc6" stroke-width="1.5"/>'
    "</pattern></defs>"
)


def draw_svg(plan: Plan, title: str) -> str:
    rows = len(plan.rules)
    prompts = len(plan.rules[0].prompts)
    block = _HEAD + rows * _ROW + _GAP
    height = 40 + prompts * block + 40
    width = _LEFT + _WIDTH + _RIGHT
    body = "\n".join(_body(plan, block))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{_HATCH}\n'
        f'<text x="10" y="22">{escape(title)}</text>\n{body}\n{_legend(height - 22)}\n</svg>\n'
    )


def _body(plan: Plan, block: int) -> Iterator[str]:
    longest = max(p.tokens for r in plan.rules for p in r.prompts)
    for number in range(len(plan.rules[0].prompts)):
        top = 40 + number * block
        first = plan.rules[0].prompts[number]
        common = f", {first.shared:,} shared with prompt 1" if number and first.shared else ""
        yield f'<text x="10" y="{top + 14}">prompt {number + 1}: {first.tokens:,} tokens{common}</text>'
        yield from _grid(plan, first.tokens, longest, top + _HEAD, len(plan.rules) * _ROW)
        for row, rule in enumerate(plan.rules):
            yield from _row(rule.rule, rule.prompts[number], longest, top + _HEAD + row * _ROW)


def _x(position: float, longest: int) -> str:
    return f"{_LEFT + position * _WIDTH / longest:.2f}"


def _grid(plan: Plan, tokens: int, longest: int, top: int, height: int) -> Iterator[str]:
    grid = plan.frame.grid.tokens
    count = tokens // grid
    step = grid * max(1, -(-count // _MOST_LINES))
    for position in range(step, tokens + 1, step):
        x = _x(position, longest)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{top - 4}" y2="{top + height}"/>'


def _row(name: str, prompt: PromptPlan, longest: int, top: int) -> Iterator[str]:
    yield f'<text x="10" y="{top + 14}">{escape(name)}</text>'
    yield from _span("hit", 0, prompt.hit, longest, top, f"{prompt.hit:,} tokens from the cache")
    start = prompt.hit
    for end in prompt.ends:
        yield from _span("run", start, end, longest, top, f"chunk {start:,} to {end:,}")
        start = end
    if not prompt.done:
        yield from _span("left", start, prompt.tokens, longest, top, "never computed")
    for end in prompt.ends:
        x = _x(end, longest)
        yield f'<line class="end" x1="{x}" x2="{x}" y1="{top - 1}" y2="{top + 19}"/>'
    yield from _states(prompt, longest, top + 24)
    reused = f"hit {prompt.hit:,}" if prompt.hit else "no hit"
    chunks = f"{prompt.steps} chunk{'' if prompt.steps == 1 else 's'}"
    text = f"{chunks}, {reused}" if prompt.done else f"{chunks}, never ends"
    yield f'<text class="small" x="{_LEFT + _WIDTH + 8}" y="{top + 13}">{text}</text>'


def _span(kind: str, start: int, end: int, longest: int, top: int, title: str) -> Iterator[str]:
    if end > start:
        width = (end - start) * _WIDTH / longest
        yield (
            f'<rect class="{kind}" x="{_x(start, longest)}" y="{top}" width="{width:.2f}" height="18">'
            f"<title>{title}</title></rect>"
        )


def _states(prompt: PromptPlan, longest: int, y: int) -> Iterator[str]:
    for kind, positions in (("missing", prompt.missing), ("kept", prompt.kept)):
        for position in positions:
            title = f"state {'kept' if kind == 'kept' else 'missing'} at {position:,}"
            x = _x(position, longest)
            yield f'<circle class="{kind}" cx="{x}" cy="{y}" r="3.6"><title>{title}</title></circle>'
    for claim, held in prompt.stale:
        left = float(_x(claim, longest)) - 4
        yield (
            f'<path class="stale" d="M{left:.2f} {y - 4}l8 8m0 -8l-8 8">'
            f"<title>the entry for {claim:,} holds the state after {held:,}</title></path>"
        )


def _legend(y: int) -> str:
    parts = []
    x = 10
    for kind, text in (
        ("hit", "from the cache"),
        ("run", "computed"),
        ("kept", "state kept"),
        ("missing", "state missing"),
        ("stale", "state of another position"),
    ):
        if kind in ("hit", "run"):
            parts.append(f'<rect class="{kind}" x="{x}" y="{y - 10}" width="16" height="12"/>')
        elif kind == "stale":
            parts.append(f'<path class="stale" d="M{x + 4} {y - 8}l8 8m0 -8l-8 8"/>')
        else:
            parts.append(f'<circle class="{kind}" cx="{x + 8}" cy="{y - 4}" r="3.6"/>')
        parts.append(f'<text class="small" x="{x + 22}" y="{y}">{text}</text>')
        x += 40 + 7 * len(text)
    parts.append(f'<text class="small" x="{x}" y="{y}">thin lines: the state grid</text>')
    return "\n".join(parts)
