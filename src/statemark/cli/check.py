"""`statemark check`: what a `vllm serve` command line will do to the prefix cache of a hybrid model, before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from statemark.align.configuration import make_setup
from statemark.align.findings import Level, find
from statemark.align.platforms import known_names
from statemark.align.report import as_json, as_text
from statemark.errors import CheckpointError

_EXAMPLES = """\b
Examples:
  statemark check Qwen/Qwen3-Next-80B-A3B-Instruct --gpu h100 -tp 4
  statemark check ./model --max-num-batched-tokens 2048 --kv-cache-dtype fp8 --fail-on warning
  statemark check vllm serve ./model --speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'
\b
Exit codes: 0 nothing at or above --fail-on, 1 something was found, 2 the command line can't be right.
"""

# Unknown options belong to vLLM and are passed on whole; -h is vLLM's too (as in -dph), so help is --help only.
PASS_ON = {"ignore_unknown_options": True, "help_option_names": ["--help"], "max_content_width": 100}


def fetch_from_hub(name: str, file: str) -> Path:
    """One file of a model on the Hugging Face hub."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise CheckpointError(
            f"there is no model at {name}, and reading it from the hub needs huggingface-hub",
            hint="pip install 'statemark[hub]', or give a folder or a config.json",
        ) from None
    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:
        raise CheckpointError(
            f"can't read {file} of {name} from the hub: {error}", hint="give a folder or a config.json instead"
        ) from None


@click.command(epilog=_EXAMPLES, context_settings=PASS_ON)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="MODEL [VLLM_FLAGS]...")
@click.option("--gpu", metavar="NAME", help=f"Where it will run: {', '.join(known_names())}. [default: h100]")
@click.option("--usage", type=click.Choice(["server", "offline"]), default="server", show_default=True)
@click.option("--concurrency", type=click.IntRange(1), help="Sessions at once that you expect.")
@click.option("--drafter", metavar="FOLDER|ID", help="The drafter's config, where --speculative-config names none.")
@click.option("--json", "as_object", is_flag=True, help="Print one JSON object.")
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info", "never"]),
    default="error",
    show_default=True,
    help="Exit with 1 if there is a finding at this level or above.",
)
def command(
    arguments: tuple[str, ...],
    gpu: str | None,
    usage: str,
    concurrency: int | None,
    drafter: str | None,
    as_object: bool,
    fail_on: str,
) -> int:
    """Check a `vllm serve` command line for a hybrid model before it runs.

    MODEL is a folder, a config.json or a hub id; the flags are those of `vllm serve`, pasted as they are.
    """
    setup = make_setup(arguments, gpu=gpu, usage=usage, concurrency=concurrency, drafter=drafter, fetch=fetch_from_hub)
    findings = find(setup)
    if as_object:
        click.echo(json.dumps(as_json(setup, findings), sort_keys=True))
    else:
        click.echo(as_text(setup, findings), nl=False)
    if fail_on == "never":
        return 0
    return int(any(f.level.rank >= Level(fail_on).rank for f in findings))
