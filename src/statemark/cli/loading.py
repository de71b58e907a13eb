"""Loads the model that the common flags name, with progress and notices on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statemark.cli.options import EngineOptions
from statemark.cli.talk import Progress, say
from statemark.engine.llm import bundled_model
from statemark.server.loaded import LoadedModel
from statemark.server.served import ServedModel
from statemark.words import counted

if TYPE_CHECKING:
    from statemark.faults import Fault


def model_path(options: EngineOptions) -> str | Path:
    """The model to load: the named one, else the bundled one, else the error that says how to get one."""
    return options.model if options.model is not None else bundled_path()


def bundled_path() -> Path:
    """The model that comes along, and a word that it is taken."""
    path = bundled_model()
    say("no model is named: this is the small one that comes with statemark")
    return path


def load(
    options: EngineOptions,
    path: str | Path,
    *,
    name: str | None = None,
    fault: Fault | None = None,
    tool_call_parser: str = "auto",
    reasoning_parser: str = "auto",
    **more: Any,
) -> LoadedModel:
    """`fault`: planted on purpose by `serve --fault`. For the parsers see `parsing.choose_format`.

    `more`: arguments for `load_text_engine`; None is "not given".
    """
    progress = Progress()
    given = {name: value for name, value in more.items() if value is not None}
    arguments = options.engine_arguments() | given
    try:
        if fault is not None:
            from statemark.server.faulty import FaultyModel

            model: LoadedModel = FaultyModel.load_with(fault, path, name=name, progress=progress, **arguments)
        else:
            model = LoadedModel.load(path, name=name, progress=progress, **arguments)
        if (tool_call_parser, reasoning_parser) != ("auto", "auto"):  # which it has chosen already
            model.choose_format(tools=tool_call_parser, reasoning=reasoning_parser)
    finally:
        progress.clear()
    context = click.get_current_context(silent=True)  # none where a server loads it, which ends it as well
    if context is not None:
        context.call_on_close(model.close)
    for notice in model.notices:
        say(f"note: {notice}")
    return model


def describe(model: ServedModel) -> str:
    """Which model this is, in a phrase."""
    return f"model {model.name} ({model.precision}, {model.isa}, {counted(model.threads, 'thread')})"
