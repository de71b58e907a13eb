"""`statemark simulate`: a trace on virtual time, under several chunk rules and budgets side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statemark.align.configuration import Setup, make_setup
from statemark.align.platforms import known_names
from statemark.cli.check import PASS_ON, fetch_from_hub
from statemark.cli.talk import say
from statemark.errors import ConfigurationError
from statemark.simulate.cost import Cost, fit_cost, parse_cost
from statemark.simulate.formats import Trace, read_trace
from statemark.simulate.page import draw_page, label
from statemark.simulate.scenario import ALL_RULES, DEFAULT_SLOTS, ENGINE, Load, Result, simulate
from statemark.simulate.server import Outcome
from statemark.simulate.slots import SlotFlags, parse_slot_flags
from statemark.words import counted

# Of the engine's own cache under a memory limit, for each token of a prompt: processor time.
_ENGINE_SECONDS = 5e-7

_EXAMPLES = """\b
Examples:
  statemark simulate conversation_trace.jsonl.gz --model ./model
  statemark simulate trace.jsonl --model ./model --rule exact --rule fast --budget 2048 --budget 8192 --html out.html
  statemark simulate ./sessions --model ./model --together 16 --fit measured.jsonl --num-gpu-blocks-override 4000
"""


@click.command(epilog=_EXAMPLES, context_settings=PASS_ON)
@click.argument("trace", type=click.Path(path_type=Path, exists=True))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM_FLAGS]...")
@click.option("--model", required=True, metavar="FOLDER|ID", help="A folder, a config.json or a hub id.")
@click.option("--rule", "rules", multiple=True, type=click.Choice(ALL_RULES), help="Repeatable. [default: all]")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=click.IntRange(1),
    help="Tokens a step; repeatable. [default: the flags']",
)
@click.option(
    "--cost", "cost_text", metavar="step=S,token=S,...", help="Seconds a step, token, request, context, begin."
)
@click.option(
    "--fit", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Fit the cost to measured requests."
)
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Of the trace.")
@click.option("--together", type=click.IntRange(1), help="Always so many requests at once, whatever the trace's times.")
@click.option("--accepted", type=click.FloatRange(0), default=0.0, help="Drafts that hold, of each decode step's.")
@click.option("--llama", metavar="parallel=N,...", help="llama-server's flags, for the rule llama.cpp.")
@click.option("--limit", type=click.IntRange(1), help="Only the first so many requests.")
@click.option("--skip-bad", is_flag=True, help="Pass over lines that can't be read.")
@click.option("--gpu", metavar="NAME", help=f"Where it runs: {', '.join(known_names())}. [default: h100]")
@click.option("--usage", type=click.Choice(["server", "offline"]), default="server", show_default=True)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write table and plots to a page.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
def command(
    trace: Path,
    arguments: tuple[str, ...],
    model: str,
    rules: tuple[str, ...],
    budgets: tuple[int, ...],
    cost_text: str | None,
    fit: Path | None,
    speed: float,
    together: int | None,
    accepted: float,
    llama: str | None,
    limit: int | None,
    skip_bad: bool,
    gpu: str | None,
    usage: str,
    html: Path | None,
    as_object: bool,
) -> None:
    """Run TRACE on virtual time under every rule and budget: hit rate, steps, and how long requests wait.

    TRACE is a file of JSON lines (Mooncake's or Statemark's own, plain or .gz), one coding-agent session, or a folder
    of those. The flags are those of `vllm serve`. The cache is without limit unless they say how much memory there is.
    """
    setup = make_setup([model, *arguments], gpu=gpu, usage=usage, fetch=fetch_from_hub)
    if not setup.geometry.caching:
        raise ConfigurationError("the prefix cache is off in this configuration: there is nothing to simulate")
    read = read_trace(trace, skip_bad=skip_bad, limit=limit)
    for line in read.bad[:10]:
        say(f"passed over {line}")
    steps = list(dict.fromkeys(budgets)) or [setup.budget.scheduled]
    if cost_text is not None and fit is not None:
        raise ConfigurationError("--cost and --fit contradict each other", hint="give one of them")
    cost, source = _cost(cost_text, fit, steps[0])
    blocks = setup.blocks if setup.memory_known or setup.flags.blocks_override is not None else None
    chosen = list(dict.fromkeys(rules)) or list(ALL_RULES)
    if ENGINE in chosen and blocks is not None:
        _warn_of_engine(read, len(steps))
    slots = DEFAULT_SLOTS if llama is None else parse_slot_flags(llama)
    runs = _run(read, setup, chosen, steps, cost, Load(speed, together), blocks, accepted, slots)
    memory = "without limit" if blocks is None else f"{blocks:,} blocks"
    notes = (
        f"{read.name}: {counted(len(read.requests), 'request')} of {counted(read.prompt_tokens, 'token')}, "
        + counted(len(read.bad), "bad line"),
        f"{setup.name}: {setup.shape.family}, state grid {setup.frame.grid}, cache {memory}",
        f"{source}: {cost.step:g} s a step, {cost.token:g} a token, {cost.request:g} a row, {cost.context:g} a pair"
        + (f", {cost.begin:g} before a request is queued" if cost.begin else ""),
    )
    if html is not None:
        html.write_text(draw_page(f"{setup.name} on {read.name}", notes, runs), encoding="utf-8")
    if as_object:
        click.echo(json.dumps(_as_json(read, setup, cost, blocks, [r for r, _ in runs]), sort_keys=True))
        return
    for note in notes:
        click.echo(note)
    click.echo()
    click.echo("\n".join(_table([r for r, _ in runs])))


def _cost(text: str | None, fit: Path | None, budget: int) -> tuple[Cost, str]:
    if fit is not None:
        found = fit_cost(fit, budget)
        return found.cost, f"fitted to {found.measured} times of {fit.name}, median error {found.error:.1%}"
    return (Cost(), "assumed times") if text is None else (parse_cost(text), "times as given")


def _warn_of_engine(trace: Trace, budgets: int) -> None:
    """With a memory limit the engine's own cache is run for real, page by page: say so where that takes minutes."""
    seconds = trace.prompt_tokens * budgets * _ENGINE_SECONDS
    if seconds >= 120:
        say(f"the rule {ENGINE} with a memory limit runs the real cache: about {seconds / 60:,.0f} minutes")


def _run(
    trace: Trace,
    setup: Setup,
    rules: list[str],
    budgets: list[int],
    cost: Cost,
    load: Load,
    blocks: int | None,
    accepted: float,
    slots: SlotFlags,
) -> list[tuple[Result, Outcome]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found = []
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for budget in budgets:
            for rule in rules:
                task = bar.add_task(f"{rule} @ {budget}", total=len(trace.requests))
                found.append(
                    simulate(
                        trace, setup, rule, budget, cost, load, blocks=blocks, accepted=accepted, slots=slots,
                        progress=lambda done, task=task: bar.update(task, completed=done),  # type: ignore[misc]
                    )
                )  # fmt: skip
                bar.update(task, completed=len(trace.requests))
    return found


def _table(results: list[Result]) -> list[str]:
    head = f"{'':24}{'hit':>8}{'computed':>16}{'steps':>11}{'TTFT P50':>10}{'P90':>10}"
    head += f"{'end P50':>10}{'P90':>10}{'1/P90':>8}"
    lines = [head]
    for r in results:
        ttft = r.ttft or (float("nan"),) * 3
        whole = r.whole or (float("nan"),) * 3
        lines.append(
            f"{label(r):24}{r.hit_rate:8.2%}{r.computed:16,}{r.steps:11,}{ttft[0]:10.2f}{ttft[1]:10.2f}"
            f"{whole[0]:10.2f}{whole[1]:10.2f}{r.per_p90 or 0:8.2f}"
        )
        extra = (("preempted", r.preempted), ("refused", r.refused), ("never ran", r.never), ("wrong states", r.wrong))
        told = [f"{count:,} {what}" for what, count in extra if count]
        if told:
            lines.append(f"{'':24}  {', '.join(told)}")
    return lines


def _as_json(trace: Trace, setup: Setup, cost: Cost, blocks: int | None, results: list[Result]) -> dict[str, Any]:
    return {
        "trace": {
            "name": trace.name, "requests": len(trace.requests), "prompt_tokens": trace.prompt_tokens, "bad": trace.bad,
        },
        "model": setup.name,
        "state_grid": setup.frame.grid.tokens,
        "blocks": blocks,
        "cost": vars(cost),
        "results": [r.as_json() for r in results],
    }  # fmt: skip
