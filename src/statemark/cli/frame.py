"""Turns a command line into one command's call and its exceptions into `error:`, `hint:` and an exit code.

Owns the list of commands; must not import any of them, nor NumPy, until one is asked for: `--version` stays instant.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import importlib.util
import re
from collections.abc import Sequence
from typing import Any

import click

from statemark import __version__
from statemark.cli.talk import report_error
from statemark.errors import ConfigurationError, UserError

# Name -> one line for `--help`. Each lives in cli/<name with _ for ->.py, which defines `command`, a click.Command.
COMMANDS = {
    "generate": "Complete prompts and print what the model writes.",
    "chat": "Talk to a model in the terminal; shows what each turn reused.",
    "serve": "Serve the OpenAI API, so that existing clients work.",
    "demo": "A tour of about a minute: what the cache saves, and that it changes nothing.",
    "bench": "Measure prefill and decode speed on this machine.",
    "make-model": "Write a random-weight checkpoint, to try or to time a shape.",
    "quantize": "Write a model with int8 or int4 weights that loads in a moment.",
    "check": "Check a serving configuration for cache faults before it runs.",
    "traces": "Replay recorded sessions on the cache alone and show what it saves.",
    "explain": "Show where two prompts part and what the cache would reuse.",
    "probe": "Ask a live server whether its prefix cache changes its answers.",
    "replay": "Replay traffic against live servers and report what their users would feel.",
    "record": "Write a trace of a server's traffic that holds no words.",
    "simulate": "Run a trace on virtual time, under several rules side by side.",
    "plan": "Show how a prompt is cut and what a later one can reuse.",
}

EPILOG = """\b
First steps:
  statemark make-model --like qwen3.5-0.8b --scale tiny ./tiny
  statemark generate --model ./tiny "Once upon a time"
  statemark chat --model ./tiny
  statemark COMMAND --help
"""


def _module_name(command: str) -> str:
    return f"statemark.cli.{command.replace('-', '_')}"


class LazyGroup(click.Group):
    """A group that imports a command's file only to run it or to show its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if importlib.util.find_spec(_module_name(name))]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(_module_name(cmd_name)).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{_module_name(cmd_name)}.command must be a click.Command, is {type(command).__name__}")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, COMMANDS[name]) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in known:
            near = difflib.get_close_matches(args[0], known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known)}"
            raise ConfigurationError(f"there is no command '{args[0]}'", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True},
)
@click.version_option(__version__, "-V", "--version", message="statemark %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run hybrid language models on a CPU, with a prefix cache that never changes an answer."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line; every error that a user can cause ends as two lines on stderr and exit code 2."""
    try:
        result: Any = cli.main(args=None if argv is None else list(argv), prog_name="statemark", standalone_mode=False)
    except UserError as error:
        report_error(error.message, error.hint)
        return 2
    except click.ClickException as error:
        report_error(*_describe(error))
        return error.exit_code  # 2 for usage, 1 for what failed without the caller's doing
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        report_error(f"nothing more can be written: {error.strerror}", "make room, or write elsewhere")
        return 2
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _describe(error: click.ClickException) -> tuple[str, str]:
    """click's own errors in our words: (message, hint)."""
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        return f"no such option {error.option_name}", f"did you mean {' or '.join(sorted(error.possibilities))}?"
    message = error.format_message().rstrip(".")
    message = _plain(message[:1].lower() + message[1:])
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return message, f"`{error.ctx.command_path} --help` lists what it takes"
    return message, ""


def _plain(message: str) -> str:
    """click's words for numbers in ours."""
    message = re.sub(r"is not a valid integer(?: range)?$", "is no whole number", message)
    message = re.sub(r"is not a valid float(?: range)?$", "is no number", message)
    head, found, limits = message.partition(" is not in the range ")
    if not found:
        return message
    between = re.fullmatch(r"(\S+)<=x<=(\S+)", limits)
    words = f"from {between[1]} to {between[2]}" if between else limits
    for sign, text in (("x>=", "at least "), ("x>", "above "), ("x<=", "at most "), ("x<", "below ")):
        words = words.replace(sign, text)
    return f"{head} is out of range: it must be {words}"
