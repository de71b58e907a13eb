"""`statemark demo`: a tour of the cache in the terminal. The tour goes to stdout, talk to stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statemark.cli.options import isa_option
from statemark.cli.talk import Progress

if TYPE_CHECKING:
    from statemark.demo import Caught, Drawing, Faulty, Stage, Tour


@click.command()
@click.option(
    "-m",
    "--model",
    metavar="FOLDER|ID",
    envvar="STATEMARK_MODEL",
    show_envvar=True,
    help="Checkpoint to run.  [default: the bundled model]",
)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes every core.")
@isa_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object and draw nothing.")
def command(model: str | None, threads: int, isa: str | None, as_json: bool) -> None:
    """See in a minute what the prefix cache saves, and what a faulty one does to answers.

    A long document, a chat about it, a second client; then the same with a planted fault. Every answer with the cache
    is compared, bit for bit, with the one without it.
    """
    from statemark.demo import Drawing, Stage, Tour
    from statemark.engine.llm import bundled_model

    path = bundled_model() if model is None else model
    progress = Progress()
    try:
        stage = Stage(path, threads=threads, isa=isa, progress=progress)
    finally:
        progress.clear()
    name = "bundled with statemark" if model is None else Path(path).resolve().name
    tour = Tour(stage)
    faulty, caught = _run(tour, stage, name, None if as_json else Drawing())
    if as_json:
        click.echo(json.dumps(_figures(tour, stage, name, faulty, caught), sort_keys=True))
    unequal = [turn for turn in [*tour.turns, *tour.others] if not turn.equal]
    if unequal or not caught.result.equal:
        raise click.ClickException(
            f"{len(unequal)} answers with the cache differ from those without it"
            if unequal
            else "the planted fault was not caught"
        )


def _run(tour: Tour, stage: Stage, name: str, drawing: Drawing | None) -> tuple[list[Faulty], Caught]:
    if drawing is None:
        list(tour.chat())
        tour.second_client()
        return list(tour.with_fault()), tour.with_checks()
    drawing.opening(stage, name)
    drawing.chat_begins(tour)
    for number, turn in enumerate(tour.chat(), 1):
        drawing.turn(number, turn)
    drawing.second_client(tour.second_client())
    drawing.summary([*tour.turns, *tour.others])
    drawing.fault_begins()
    faulty = list(tour.with_fault())
    drawing.fault(faulty)
    caught = tour.with_checks()
    drawing.caught(caught)
    drawing.closing()
    return faulty, caught


def _figures(tour: Tour, stage: Stage, name: str, faulty: list[Faulty], caught: Caught) -> dict[str, Any]:
    """Equal input gives equal bytes, but for what is under first_token_seconds."""
    return {
        "model": {
            "name": name,
            "architecture": stage.spec.architecture,
            "dtype": stage.spec.dtype,
            "fingerprint": stage.spec.fingerprint,
            "isa": stage.isa,
            "threads": stage.threads,
        },
        "document_lines": len(tour.document.text.split("\n")),
        "turns": [turn.figures() for turn in tour.turns],
        "second_client": [turn.figures() for turn in tour.others],
        "fault": [result.figures() for result in faulty],
        "fault_with_stamps_checked": caught.figures(),
    }
