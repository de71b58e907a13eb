"""`statemark bench`: prefill and decode speed of a model on this machine. Figures go to stdout, progress to stderr."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from statemark.cli.options import isa_option
from statemark.cli.talk import Progress, say
from statemark.errors import ConfigurationError

if TYPE_CHECKING:
    from statemark.bench import BenchReport, Settings

_EXAMPLES = """\b
Examples:
  statemark bench --like qwen3.5-0.8b
  statemark bench ./model --prefill 512,2048,8192 --decode 64 --streams 1,8 --json
  statemark bench --kernels --threads 1
"""


class NumbersType(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers of at least 1, as `512,2048`; an empty text is none."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        bad = [part for part in parts if not part.isdecimal() or int(part) < 1]
        if bad:
            self.fail(f"{bad[0]!r} is not a whole number of at least 1; write it like 512,2048", param, ctx)
        return tuple(dict.fromkeys(map(int, parts)))


@click.command(epilog=_EXAMPLES)
@click.argument("model", required=False, metavar="[MODEL]")
@click.option("-m", "--model", "model_flag", metavar="FOLDER|ID", help="The same as MODEL.")
@click.option("--like", metavar="SHAPE", help="A random-weight model of this shape, made for the run.")
@click.option("--scale", type=click.Choice(["tiny", "full"]), default="full", help="Size of the --like model.")
@click.option("--prefill", type=NumbersType(), default="512,2048", help="Prompt lengths.")
@click.option("--decode", type=click.IntRange(min=1), default=64, help="Tokens that each stream generates.")
@click.option("--streams", type=NumbersType(), default="1,8", help="Numbers of streams that generate at once.")
@click.option("--repeats", type=click.IntRange(min=1), default=5, help="Rounds after the warm-up; medians are shown.")
@click.option("--dtype", type=click.Choice(["auto", "bfloat16", "float32"]), default="auto", help="Precision.")
@click.option("--quantization", type=click.Choice(["int8", "int4"]), help="Round the weights while loading.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes every core.")
@isa_option
@click.option("--max-num-batched-tokens", type=click.IntRange(min=1), help="Tokens in one engine step.")
@click.option("--kernels", is_flag=True, help="Time each kernel instead, on the shapes of a 0.8B Qwen3.5.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    model: str | None,
    model_flag: str | None,
    like: str | None,
    scale: str,
    prefill: tuple[int, ...],
    decode: int,
    streams: tuple[int, ...],
    repeats: int,
    kernels: bool,
    as_json: bool,
    **engine: Any,
) -> None:
    """Measure prefill and decode of MODEL, of a named shape or of the bundled model, with no prefix cache.

    Each figure is a median with its spread, in tokens a second, beside what the machine's product and read rates,
    measured in the same run, would allow. For figures worth quoting, let nothing else run.
    """
    from statemark.bench import Settings

    given = [name for name in (model, model_flag, like) if name is not None]
    if kernels:
        _kernels(given, repeats, as_json, engine)
        return
    if not given:
        from statemark.cli.loading import bundled_path

        model = str(bundled_path())
        given = ["bundled"]
    if len(given) != 1:
        raise ConfigurationError(
            f"{len(given)} models are named: {', '.join(given)}",
            hint="give one MODEL folder, or --like qwen3.5-0.8b for a random-weight model of that shape",
        )
    settings = Settings(prefill=prefill, decode=decode, streams=streams, repeats=repeats)
    with _folder(model or model_flag, like, scale) as folder:
        report = _measure(folder, f"{like}, {scale}" if like else given[0], settings, engine)
    click.echo(json.dumps(report.to_json(), sort_keys=True) if as_json else _table(report))


def _kernels(given: list[str], repeats: int, as_json: bool, engine: dict[str, Any]) -> None:
    """Every kernel beside its limit: the product rate, or the rate at which memory is read."""
    from statemark.kernels import Runtime, bench

    unused = [name for name in ("quantization", "max_num_batched_tokens") if engine[name] is not None]
    if given or unused or engine["dtype"] != "auto":
        raise ConfigurationError(
            f"--kernels runs no model, but {', '.join([*given, *unused]) or 'dtype'} is given",
            hint="with --kernels only --threads, --isa, --repeats and --json count",
        )
    try:
        runtime = Runtime(engine["threads"], engine["isa"])
    except ValueError as error:
        raise ConfigurationError(str(error), hint="leave --isa out to take what fits this machine") from None
    measured = bench.measure(runtime, repeats)
    click.echo(bench.as_json(measured) if as_json else bench.table(measured))


@contextmanager
def _folder(named: str | None, like: str | None, scale: str) -> Iterator[Path]:
    """The model's folder; one made for the run is deleted after it."""
    from statemark.models import resolve_model_folder
    from statemark.models.make_model import make_model

    if named is not None:
        yield resolve_model_folder(named)
        return
    assert like is not None
    with tempfile.TemporaryDirectory(prefix="statemark-bench-") as scratch, _shown() as progress:
        made = make_model(
            Path(scratch) / "model", like=like, scale=scale, progress=lambda done, all_: progress("making", done, all_)
        )
        progress.clear()
        yield made.path


def _measure(folder: Path, name: str, settings: Settings, options: dict[str, Any]) -> BenchReport:
    from dataclasses import asdict

    from statemark.bench import machine_facts, make_report, measure_limits, run_bench, start_engine, work_of
    from statemark.bench.machine import load_average

    load = load_average()
    with _shown() as progress:
        started = start_engine(folder, settings, progress=progress, **options)
        progress.clear()
        spec = started.model.spec
        runs = run_bench(started.engine, settings, vocab_size=spec.vocab_size, progress=progress)
        limits = measure_limits(started.runtime, spec.dtype)
    return make_report(
        runs,
        work=work_of(folder, spec.weight_bytes),
        limits=limits,
        model=started.describe(name),
        machine=machine_facts() | {"load_average_before": load},
        settings=asdict(settings),
    )


@contextmanager
def _shown() -> Iterator[Progress]:
    progress = Progress()
    try:
        yield progress
    finally:
        progress.clear()


def _table(report: BenchReport) -> str:
    from statemark.bench import render_table

    if report.machine["load_average_before"] > report.machine["cores"] / 2:
        load = report.machine["load_average_before"]
        say(f"note: the load average was {load} before the run, so other work may have slowed it down")
    return render_table(report)
