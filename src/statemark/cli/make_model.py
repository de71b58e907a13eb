"""`statemark make-model`: write a random-weight checkpoint of a named shape."""

from __future__ import annotations

import json
from pathlib import Path

import click

from statemark.cli.talk import Progress
from statemark.models.make_model import make_model
from statemark.models.shapes import SCALES, SHAPES

_EXAMPLES = """\b
Examples:
  statemark make-model --like qwen3.5-0.8b --scale tiny ./tiny
  statemark make-model --like qwen3.5-0.8b ./random-0.8b
"""


@click.command(epilog=_EXAMPLES)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--like", required=True, metavar="SHAPE", help=f"The shape to copy: {', '.join(SHAPES)}.")
@click.option("--scale", type=click.Choice(SCALES), default="full", help="tiny keeps the proportions in four layers.")
@click.option("--seed", type=int, default=0, help="Another seed gives other weights.")
@click.option("--dtype", type=click.Choice(("bfloat16", "float16", "float32")), default="bfloat16")
@click.option("--vocab", type=click.IntRange(min=1), help="Number of token ids, instead of the shape's own.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(out: Path, like: str, scale: str, seed: int, dtype: str, vocab: int | None, as_json: bool) -> None:
    """Write a checkpoint folder with random weights to OUT.

    It loads here, in transformers and in vLLM. Its text is noise: use it to time a shape or to report a bug without
    sharing a model. Equal options write equal bytes.
    """
    progress = Progress()
    try:
        made = make_model(
            out,
            like=like,
            scale=scale,
            seed=seed,
            dtype=dtype,
            vocab=vocab,
            progress=lambda done, total: progress("writing weights", done, total),
        )
    finally:
        progress.clear()
    if as_json:
        result = {"path": str(made.path), "parameters": made.parameters, "weight_bytes": made.weight_bytes}
        click.echo(json.dumps(result, sort_keys=True))
    else:
        click.echo(
            f"{made.path}: {like}-like, {scale}, {made.parameters / 1e6:.1f} M parameters, "
            f"{made.weight_bytes / 1e6:.1f} MB of {dtype}"
        )
