"""`--config FILE`: a command's flags in a TOML file. Flags win over the environment, that over the file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from statemark.errors import ConfigurationError

# Of what a file may say for which flag; Click itself would cut 1.9 to 1, and take true for 1.
_KINDS: dict[type[Any], tuple[tuple[type, ...], str]] = {
    click.types.BoolParamType: ((bool,), "true or false"),
    click.types.IntParamType: ((int,), "a whole number"),
    click.types.FloatParamType: ((int, float), "a number"),
    click.types.StringParamType: ((str,), "a text in quotes"),
    click.types.Path: ((str,), "a text in quotes"),
}


def config_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flag. It is read before all others, so that they find their defaults in the file."""
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="TOML file with flags of this command, such as `port = 8000`.",
    )(function)


def _load(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} can't be read as TOML: {error}") from None
    ctx.default_map = {**(ctx.default_map or {}), **_named(ctx.command, values, path)}


def _named(command: click.Command, values: dict[str, Any], path: Path) -> dict[str, Any]:
    """Keys are flags without their dashes in front; - and _ are the same. Values by the parameter's own name."""
    names: dict[str, str] = {}
    types: dict[str, Any] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name and parameter.name != "config":
            types[parameter.name] = parameter.type
            names |= {flag.lstrip("-").replace("-", "_"): parameter.name for flag in parameter.opts if "--" in flag}
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = names.get(key.replace("-", "_"))
        if name is None:
            near = difflib.get_close_matches(key.replace("-", "_"), names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"`{command.name} --help` lists what there is"
            raise ConfigurationError(f"{path}: there is no setting {key!r}", hint=hint)
        if isinstance(value, dict):
            raise ConfigurationError(f"{path}: {key!r} must be a value, not a table", hint="write all flags at the top")
        wanted = next((words for kind, words in _KINDS.items() if isinstance(types[name], kind)), None)
        if wanted is not None and type(value) not in wanted[0]:
            raise ConfigurationError(f"{path}: {key!r} must be {wanted[1]}, got {value!r}")
        found[name] = value
    return found
