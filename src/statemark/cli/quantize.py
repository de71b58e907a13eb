"""`statemark quantize`: write a model with int8 or int4 weights, packed, so that it loads in a moment."""

from __future__ import annotations

import json
from pathlib import Path

import click

from statemark.cli.talk import Progress, say
from statemark.models.quantization import QUANTIZATIONS
from statemark.models.quantize import quantize_model

_EXAMPLES = """\b
Examples:
  statemark quantize ./model ./model-int8
  statemark quantize ./model ./model-int4 --quantization int4
"""


@click.command(epilog=_EXAMPLES)
@click.argument("model", metavar="MODEL")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--quantization", type=click.Choice(QUANTIZATIONS), default="int8", help="Type of the weights.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(model: str, out: Path, quantization: str, as_json: bool) -> None:
    """Quantize MODEL, a folder or hub id, into a new folder OUT.

    Every command takes OUT as a model. Its answers are, bit for bit, those of MODEL with the same --quantization; only
    loading is quicker, and processes that run the same OUT share its memory.
    """
    progress = Progress()
    try:
        made = quantize_model(model, out, quantization, progress)
    finally:
        progress.clear()
    for notice in made.notices:
        say(f"note: {notice}")
    if as_json:
        result = {"path": str(made.path), "quantization": quantization, "weight_bytes": made.weight_bytes}
        click.echo(json.dumps(result | {"source_bytes": made.source_bytes}, sort_keys=True))
    else:
        click.echo(f"{made.path}: {quantization}, {made.weight_bytes / 1e6:.1f} MB of {made.source_bytes / 1e6:.1f} MB")
