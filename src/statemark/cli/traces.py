"""`statemark traces`: what the prefix cache saves on recorded sessions, beside an ideal cache and beside LRU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import click

from statemark.cache.explain import WHY
from statemark.cache.value import POLICIES
from statemark.cli.talk import say
from statemark.simulate.replay import Result, few_marks, ideal, together, unlimited
from statemark.simulate.traces import TAILS, read_sessions
from statemark.words import counted

_EXAMPLES = """\b
Examples:
  statemark traces ./traces/coding_agent
  statemark traces ./traces/coding_agent --shares 16,4,1
"""


@dataclass(frozen=True)
class Row:
    """One line of the table. `ratio`: tokens computed over those of the ideal cache; `lost`: by the names of `WHY`."""

    name: str
    computed: int
    reuse: float
    ratio: float
    lost: dict[str, int]


def _row(name: str, result: Result, best: Result) -> Row:
    return Row(
        name,
        result.computed,
        round(result.reuse, 4),
        round(result.computed / best.computed, 4),
        {reason: result.counters[f"tokens_lost_{reason}"] for reason in WHY},
    )


def _shares(ctx: click.Context, param: click.Parameter, value: str) -> list[int]:
    try:
        found = [int(part) for part in value.split(",") if part]
    except ValueError:
        found = [0]
    if any(n < 1 for n in found):
        raise click.BadParameter("give whole numbers like 16,4,1: a sixteenth, a quarter and all of the working set")
    return found


@click.command(epilog=_EXAMPLES)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--marks", type=click.IntRange(min=1), default=8, help="Marks a session for the third line.")
@click.option(
    "--shares", default="", callback=_shares, metavar="N,N", help="Also all sessions at once in 1/N of the working set."
)
@click.option("--tails", type=click.Choice(TAILS), default="appended", help="What follows a prompt's last whole block.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON object.")
def command(folder: Path, marks: int, shares: list[int], tails: str, as_json: bool) -> None:
    """Replay the sessions in FOLDER (*.json.gz) on the cache alone, without a model.

    Counts the tokens that would be computed: with an ideal attention-only cache at the trace's grain of 64 tokens, with
    marks and pages without limit, with a few marks a session, and with all sessions sharing a part of the working set,
    where LRU stands beside the cache's own order. Takes minutes for long sessions.
    """
    sessions = read_sessions(folder, tails=tails)
    best = ideal(request for session in sessions for request in session)
    requests, tokens = counted(best.requests, "request"), counted(best.prompt, "prompt token")
    say(f"{counted(len(sessions), 'session')}, {requests}, {tokens}")
    rows = [_row("ideal, attention only", best, best)]
    everything = unlimited(sessions)
    rows.append(_row("marks without limit", everything, best))
    for policy in POLICIES:
        result = few_marks(sessions, marks, policy)
        rows.append(_row(f"{counted(marks, 'mark')} a session, {policy}", result, best))
    for share in shares:
        for policy in POLICIES:
            result = together(sessions, everything.peak_bytes // share, policy)
            rows.append(_row(f"1/{share} of {everything.peak_bytes / 2**30:,.0f} GiB, {policy}", result, best))
    if as_json:
        out = {
            "sessions": len(sessions),
            "requests": best.requests,
            "prompt_tokens": best.prompt,
            "tails": tails,
            "working_set_bytes": everything.peak_bytes,
            "rows": [vars(row) for row in rows],
        }
        click.echo(json.dumps(out, sort_keys=True))
        return
    reasons = [reason for reason in WHY if any(row.lost[reason] for row in rows)]
    lost = "".join(f"{reason.replace('_', ' '):>13}" for reason in reasons)
    click.echo(f"{'':34}{'computed':>14}{'reuse':>10}{'ratio':>8}" + (f"   lost:{lost}" if lost else ""))
    for row in rows:
        lost = "".join(f"{row.lost[reason]:13,}" for reason in reasons)
        click.echo(
            f"{row.name:34}{row.computed:14,}{row.reuse:10.2%}{row.ratio:8.3f}" + (f"{'':8}{lost}" if lost else "")
        )
