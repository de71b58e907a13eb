"""Loads the model that the common flags name, with progress and notices on stderr."""

from __future__ import annotations

from statemark.cli.options import EngineOptions
from statemark.cli.talk import Progress, say
from statemark.server.loaded import LoadedModel
from statemark.server.served import ServedModel


def load(options: EngineOptions, *, name: str | None = None) -> LoadedModel:
    path = options.model_path
    progress = Progress()
    try:
        model = LoadedModel.load(path, name=name, progress=progress, **options.engine_arguments())
    finally:
        progress.clear()
    for notice in model.notices:
        say(f"note: {notice}")
    return model


def describe(model: ServedModel) -> str:
    """Which model this is, in a phrase."""
    return f"model {model.name} ({model.precision}, {model.isa}, {model.threads} threads)"
