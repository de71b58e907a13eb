"""A plan as text: a table, and a picture with one row a rule and prompt. Reads the same without colour.

Knows positions and columns; computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from statemark.align.planner import Plan, PromptPlan

HIT, COMPUTED, END, UNFINISHED = "░", "━", "┫", "?"
KEPT, MISSING, STALE, GRID = "●", "○", "✗", "'"
LEGEND = (
    (HIT, "from the cache"),
    (COMPUTED, "computed"),
    (END, "chunk end"),
    (GRID, "state grid"),
    (KEPT, "state kept"),
    (MISSING, "state missing"),
    (STALE, "state of another position"),
)


def table(plan: Plan) -> str:
    """One line a rule and prompt."""
    head = ("rule", "prompt", "tokens", "hit", "computed", "chunks", "kept", "missing", "wrong")
    rows = [head]
    for rule in plan.rules:
        for number, prompt in enumerate(rule.prompts, 1):
            rows.append(
                (
                    rule.rule,
                    str(number),
                    f"{prompt.tokens:,}",
                    f"{prompt.hit:,}",
                    f"{prompt.computed:,}",
                    f"{prompt.steps:,}" + ("" if prompt.done else ", then never"),
                    f"{len(prompt.kept):,}",
                    f"{len(prompt.missing):,}",
                    f"{len(prompt.stale):,}" + (" (and read)" if prompt.read_stale else ""),
                )
            )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def chunks(plan: Plan, most: int = 12) -> str:
    """Chunk ends and states, rule by rule; long lists are cut in the middle."""
    lines = []
    for rule in plan.rules:
        for number, prompt in enumerate(rule.prompts, 1):
            where = f"chunks end at {_numbers(prompt.ends, most)}" if prompt.ends else "no chunk"
            lines.append(f"{rule.rule}, prompt {number}: {where}")
            if prompt.kept:
                lines.append(f"  states kept at {_numbers(prompt.kept, most)}")
            if prompt.missing:
                lines.append(f"  states missing at {_numbers(prompt.missing, most)}")
            for claim, held in prompt.stale:
                lines.append(f"  wrong state: the entry for {claim:,} holds the state after {held:,}")
            if not prompt.done:
                lines.append("  the rule gives it nothing more: it never finishes")
    return "\n".join(lines) + "\n"


def _numbers(values: Sequence[int], most: int) -> str:
    if len(values) <= most:
        return ", ".join(f"{v:,}" for v in values)
    half = most // 2
    ends = [
        *(f"{v:,}" for v in values[:half]),
        f"... ({len(values) - 2 * half} more)",
        *(f"{v:,}" for v in values[-half:]),
    ]
    return ", ".join(ends)


def draw(plan: Plan, width: int = 100) -> str:
    """The picture for a terminal of `width` columns."""
    name = max((len(r.rule) for r in plan.rules), default=0) + 2
    columns = max(20, width - name)
    longest = max(p.tokens for r in plan.rules for p in r.prompts)
    lines = list(_rows(plan, name, columns, longest))
    return "\n".join(line.rstrip() for line in [*lines, *_legend(width)]) + "\n"


def _legend(width: int) -> Iterator[str]:
    line = ""
    for mark, meaning in LEGEND:
        item = f"{mark} {meaning}"
        if line and len(line) + 3 + len(item) > width:
            yield line
            line = item
        else:
            line = f"{line}   {item}" if line else item
    yield line


def _rows(plan: Plan, name: int, columns: int, longest: int) -> Iterator[str]:
    grid = plan.frame.grid.tokens
    for number in range(len(plan.rules[0].prompts)):
        first = plan.rules[0].prompts[number]
        common = f", {first.shared:,} of them shared with prompt 1" if number and first.shared else ""
        yield f"prompt {number + 1}: {first.tokens:,} tokens{common}"
        if columns * grid >= 3 * longest:
            marks = range(grid, first.tokens + 1, grid)
            yield " " * name + _stamp(" " * columns, marks, GRID, columns, longest)
        for rule in plan.rules:
            prompt = rule.prompts[number]
            yield rule.rule.ljust(name) + _spans(prompt, columns, longest)
            states = _stamp(" " * columns, prompt.missing, MISSING, columns, longest)
            states = _stamp(states, prompt.kept, KEPT, columns, longest)
            states = _stamp(states, (s[0] for s in prompt.stale), STALE, columns, longest)
            if states.strip():
                yield " " * name + states
        yield ""


def _column(position: int, columns: int, longest: int) -> int:
    """The column whose right edge is nearest to `position`."""
    return max(0, min(columns - 1, round(position * columns / longest) - 1))


def _spans(prompt: PromptPlan, columns: int, longest: int) -> str:
    line = [" "] * columns
    reached = prompt.ends[-1] if prompt.ends else prompt.hit
    for column in range(_column(prompt.tokens, columns, longest) + 1):
        position = (column + 0.5) * longest / columns
        line[column] = HIT if position < prompt.hit else COMPUTED if position < reached else UNFINISHED
    for end in prompt.ends:
        line[_column(end, columns, longest)] = END
    return "".join(line)


def _stamp(line: str, positions: Iterable[int], mark: str, columns: int, longest: int) -> str:
    cells = list(line)
    for position in positions:
        cells[_column(position, columns, longest)] = mark
    return "".join(cells)
