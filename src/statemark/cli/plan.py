"""`statemark plan`: how a prompt is cut into chunks, which states that leaves, and what the next prompts reuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from statemark.align.configuration import make_setup
from statemark.align.picture import chunks, draw, table
from statemark.align.planner import Plan, make_plan, make_prompts
from statemark.align.platforms import known_names
from statemark.align.rules import RULES
from statemark.align.svg import draw_svg
from statemark.cli.check import PASS_ON, fetch_from_hub
from statemark.errors import ConfigurationError

_EXAMPLES = """\b
Examples:
  statemark plan ./model --prompt 5000 --prompt 5500
  statemark plan ./model --prompt 8000 --prompt 8000 --prompt 8000 --shared 6000 --rule vllm-0.32 --rule exact
  statemark plan ./model --prompt 230000 --gpu h100-64 -tp 4 --svg plan.svg
"""


@click.command(epilog=_EXAMPLES, context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [VLLM_FLAGS]...")
@click.option(
    "--prompt", "prompts", multiple=True, type=click.IntRange(1), metavar="TOKENS", help="Length; repeatable."
)
@click.option("--shared", type=click.IntRange(0), help="Tokens that all prompts share. [default: as many as they can]")
@click.option("--rule", "rules", multiple=True, type=click.Choice(list(RULES)), help="Repeatable. [default: all]")
@click.option("--gpu", metavar="NAME", help=f"Where it will run: {', '.join(known_names())}. [default: h100]")
@click.option("--usage", type=click.Choice(["server", "offline"]), default="server", show_default=True)
@click.option("--drafter", metavar="FOLDER|ID", help="The drafter's config, where --speculative-config names none.")
@click.option("--width", type=click.IntRange(40, 400), default=100, show_default=True, help="Columns of the picture.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Write the picture to a file as well.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
def command(
    arguments: tuple[str, ...],
    prompts: tuple[int, ...],
    shared: int | None,
    rules: tuple[str, ...],
    gpu: str | None,
    usage: str,
    drafter: str | None,
    width: int,
    svg: Path | None,
    as_object: bool,
) -> None:
    """Show a prompt's chunks, states and hits under each rule, and those of the prompts after it.

    MODEL is a folder, a config.json or a hub id; the flags are those of `vllm serve`, pasted as they are. Each prompt
    repeats or extends the first, unless --shared says how much they have in common.
    """
    if not prompts:
        raise ConfigurationError("no prompt is given", hint="--prompt 8000, and once more for each later prompt")
    setup = make_setup(arguments, gpu=gpu, usage=usage, drafter=drafter, fetch=fetch_from_hub)
    if not setup.geometry.caching:
        raise ConfigurationError("the prefix cache is off in this configuration: there is nothing to plan")
    too_long = [p for p in prompts if p >= setup.geometry.max_model_len]
    if too_long:
        raise ConfigurationError(
            f"--prompt {too_long[0]} doesn't fit max_model_len {setup.geometry.max_model_len} with room for an answer",
            hint="raise --max-model-len, or lower --prompt",
        )
    plan = make_plan(
        setup.frame,
        setup.groups,
        make_prompts(prompts, shared),
        list(dict.fromkeys(rules)) or list(RULES),
        shared=shared,
    )
    frame = setup.frame
    title = f"{setup.shape.family}: state grid {frame.grid}, {frame.step_limit:,} tokens a step"
    if svg is not None:
        svg.write_text(draw_svg(plan, title), encoding="utf-8")
    if as_object:
        click.echo(json.dumps(_as_json(plan, setup.name), sort_keys=True))
        return
    click.echo(f"{setup.name}: {title}\n")
    click.echo(draw(plan, width))
    click.echo(table(plan))
    click.echo(chunks(plan), nl=False)


def _as_json(plan: Plan, name: str) -> dict[str, Any]:
    frame = plan.frame
    return {
        "model": name,
        "state_grid": frame.grid.tokens,
        "hit_unit": frame.hit_unit.tokens,
        "budget": frame.step_limit,
        "rules": [
            {
                "rule": rule.rule,
                "chunks": rule.steps,
                "computed": rule.computed,
                "prompts": [
                    {
                        "tokens": p.tokens,
                        "shared": p.shared,
                        "hit": p.hit,
                        "chunk_ends": list(p.ends),
                        "kept": list(p.kept),
                        "missing": list(p.missing),
                        "wrong": [{"entry": claim, "holds": held} for claim, held in p.stale],
                        "reads_wrong_state": p.read_stale,
                        "finishes": p.done,
                    }
                    for p in rule.prompts
                ],
            }
            for rule in plan.rules
        ],
    }
