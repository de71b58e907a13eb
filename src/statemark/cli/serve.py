"""`statemark serve`: the OpenAI API on a port."""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

import click

from statemark.cli.options import EngineOptions, engine_options
from statemark.cli.talk import say
from statemark.errors import ConfigurationError
from statemark.parsing import ALIASES, TOOL_FORMATS
from statemark.server.served import ServedModel
from statemark.server.state import Settings

if TYPE_CHECKING:
    from statemark.faults import Fault

_EXAMPLES = """\b
Example:
  statemark serve --model ./tiny --port 8000
  curl http://127.0.0.1:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "hi"}]}'
"""


@click.command(epilog=_EXAMPLES)
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for every interface.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="Port; 0 takes a free one.")
@click.option("--served-model-name", metavar="NAME", help="Name that clients use.  [default: the folder's name]")
@click.option("--api-key", envvar="STATEMARK_API_KEY", show_envvar=True, help="Ask clients for this key.")
@click.option(
    "--max-waiting", type=click.IntRange(min=0), default=256, help="Sequences that may wait; more get status 429."
)
@click.option(
    "--shutdown-grace", type=click.FloatRange(min=0), default=10.0, help="Seconds that answers get to finish."
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
@click.option("--fault", metavar="NAME", help="Plant a known cache fault, to try `probe` on. Needs --unsafe-faults.")
@click.option("--unsafe-faults", is_flag=True, help="Confirm that --fault may make answers wrong.")
@engine_options
def command(
    host: str,
    port: int,
    served_model_name: str | None,
    api_key: str | None,
    max_waiting: int,
    shutdown_grace: float,
    tool_call_parser: str,
    reasoning_parser: str,
    fault: str | None,
    unsafe_faults: bool,
    options: EngineOptions,
) -> None:
    """Serve the OpenAI API, so that existing clients work by changing their base URL.

    It listens at once; /health says 503 until the model is loaded.
    """
    from statemark.cli.loading import load, model_path
    from statemark.server.app import build_app
    from statemark.server.run import bind, serve

    planted = _planted(fault, unsafe_faults)
    path = model_path(options)  # before a port is taken: it may be an error
    if api_key is not None and not api_key.strip():
        raise ConfigurationError("the API key is empty", hint="give --api-key a value, or leave it out")
    settings = Settings(host=host, port=port, api_key=api_key, max_waiting=max_waiting, shutdown_grace=shutdown_grace)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    listener = bind(settings)
    address, number = listener.getsockname()[:2]
    url = f"http://{f'[{address}]' if ':' in address else address}:{number}"

    def load_model() -> ServedModel:
        parsers = {"tool_call_parser": tool_call_parser, "reasoning_parser": reasoning_parser}
        return load(options, path, name=served_model_name, fault=planted, **parsers)

    app = build_app(load_model, settings)
    if api_key is None and not ipaddress.ip_address(address).is_loopback:
        say(f"note: {address} can be reached from other machines, and no --api-key is asked for")
    say(f"loading {path}; {url}/health tells when it is done")
    serve(app, listener, lambda model: _report(model, url))


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
