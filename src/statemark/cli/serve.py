"""`statemark serve`: the OpenAI API on a port."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from statemark.cli.options import EngineOptions, engine_options
from statemark.cli.serve_options import ServeOptions, serve_options
from statemark.cli.talk import say
from statemark.errors import ConfigurationError
from statemark.parsing import ALIASES, TOOL_FORMATS
from statemark.server.served import ServedModel

if TYPE_CHECKING:
    from statemark.faults import Fault

_EXAMPLES = """\b
Example:
  statemark serve --model ./tiny --port 8000
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "hi"}]}'
"""


@click.command(epilog=_EXAMPLES, context_settings={"auto_envvar_prefix": "STATEMARK"})
@serve_options
@click.option(
    "--fault",
    metavar="NAME",
    allow_from_autoenv=False,
    help="Plant a known cache fault, to try `probe` on. Needs --unsafe-faults.",
)
@click.option(
    "--unsafe-faults", is_flag=True, allow_from_autoenv=False, help="Confirm that --fault may make answers wrong."
)
@click.option(
    "--tool-call-parser",
    type=click.Choice(["auto", "none", *TOOL_FORMATS, *ALIASES]),
    default="auto",
    help="How the model writes tool calls; auto asks its chat template.",
)
@click.option(
    "--reasoning-parser",
    type=click.Choice(["auto", "none", "think"]),
    default="auto",
    help="Whether think sections are told apart from the answer.",
)
@engine_options
def command(
    serving: ServeOptions,
    tool_call_parser: str,
    reasoning_parser: str,
    fault: str | None,
    unsafe_faults: bool,
    options: EngineOptions,
) -> None:
    """Serve OpenAI's and Anthropic's APIs, so that existing clients work by changing their base URL.

    It listens at once; /health says 503 until the model is loaded. Every flag can also be an environment variable
    (--max-num-seqs is STATEMARK_MAX_NUM_SEQS) or a line in the --config file (max-num-seqs = 8).
    """
    from statemark.cli.loading import load, model_path
    from statemark.server.app import build_app
    from statemark.server.run import bind, serve

    planted = _planted(fault, unsafe_faults)
    path = model_path(options)  # before a port is taken: it may be an error
    settings = serving.settings()
    level = serving.log_level.upper()
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")
    with _access_log(serving.access_log) as write:
        listener = bind(settings)
        address, number = listener.getsockname()[:2]
        url = f"http://{f'[{address}]' if ':' in address else address}:{number}"

        def loaded() -> ServedModel:
            name, template = serving.served_model_name, serving.chat_template
            parsers = {"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser}
            return load(options, path, name=name, fault=planted, chat_template=template, **parsers)

        app = build_app(loaded, settings, access_log=write)
        if settings.api_key is None and not ipaddress.ip_address(address).is_loopback:
            say(f"note: {address} can be reached from other machines, and no --api-key is asked for")
        say(f"loading {path}; {url}/health tells when it is done")
        if settings.normalize_system:
            say("note: --normalize-system changes system prompts that hold values of their own; /metrics counts them")
        serve(app, listener, lambda model: _report(model, url))


@contextlib.contextmanager
def _access_log(path: Path | None) -> Iterator[Callable[[str], None] | None]:
    """Writes lines at once, so that whoever follows the file sees each request as it ends."""
    if path is None:
        yield None
        return
    try:
        file = click.open_file(str(path), "a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"can't write the access log {path}: {error.strerror}") from None
    with file:

        def write(line: str) -> None:
            file.write(line + "\n")
            file.flush()

        yield write


def _planted(name: str | None, confirmed: bool) -> Fault | None:
    if name is None:
        if confirmed:
            raise ConfigurationError("--unsafe-faults without a fault", hint="add --fault NAME, or leave it out")
        return None
    from statemark.faults import named_fault

    fault = named_fault(name)
    if not confirmed:
        raise ConfigurationError(
            f"--fault {name} makes answers wrong on purpose: {fault.words}",
            hint="add --unsafe-faults if that is what you want; never on a server that somebody relies on",
        )
    return fault


def _report(model: ServedModel, url: str) -> None:
    for line in model.report():
        say(line)
    say(f"serving at {url}/v1 (Ctrl-C stops)")
