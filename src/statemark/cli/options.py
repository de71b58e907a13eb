"""The flags that several commands share, each defined once. Knows what the flags mean, not what the engine does."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|B)?\s*", re.IGNORECASE)
_POWER = {None: 0, "K": 1, "M": 2, "G": 3, "T": 4}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SizeType(click.ParamType):  # type: ignore[type-arg]
    """Bytes, as `2GiB`, `512M` or `1073741824`; K, M, G and T are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = _SIZE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not a size; write it like 2GiB, 512MiB or a number of bytes", param, ctx)
        unit = match.group(2)
        if unit is None and "." in match.group(1):
            self.fail(f"{value!r} is a part of a byte; did you mean {match.group(1)}GiB?", param, ctx)
        return int(float(match.group(1)) * 1024 ** _POWER[unit.upper() if unit else None])


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What the common flags said; None is "not given", so that the engine's own default holds."""

    model: str | None
    dtype: str
    quantization: str | None
    isa: str | None
    threads: int
    cache_memory: int | None
    cache_dir: str | None
    cache_disk: int | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    num_speculative_tokens: int | None
    prefix_caching: bool

    def engine_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `LLM`, without those that were not given."""
        given = {
            "dtype": self.dtype,
            "num_threads": self.threads,
            "enable_prefix_caching": self.prefix_caching,
            "quantization": self.quantization,
            "isa": self.isa,
            "cache_memory": self.cache_memory,
            "cache_dir": self.cache_dir,
            "cache_disk": self.cache_disk,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "num_speculative_tokens": self.num_speculative_tokens,
        }
        return {name: value for name, value in given.items() if value is not None}


isa_option: Decorator = click.option(
    "--isa",
    type=click.Choice(["amx_bf16", "avx512_bf16", "avx2", "portable"]),
    help="Instruction set.  [default: the best]",
)

_ENGINE_FLAGS: list[Decorator] = [
    click.option(
        "-m",
        "--model",
        metavar="FOLDER|ID",
        envvar="STATEMARK_MODEL",
        show_envvar=True,
        help="Checkpoint to run.  [default: the bundled model]",
    ),
    click.option(
        "--dtype", type=click.Choice(["auto", "bfloat16", "float32"]), default="auto", help="Precision of the weights."
    ),
    click.option("--quantization", type=click.Choice(["int8", "int4"]), help="Round the weights while loading."),
    click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads; 0 takes every core."),
    isa_option,
    click.option("--cache-memory", type=SizeType(), help="Bytes for pages and marks, such as 2GiB."),
    click.option("--cache-dir", metavar="FOLDER", help="Keep computed prefixes here, for later runs too."),
    click.option(
        "--cache-disk", type=SizeType(), help="Bytes that --cache-dir may take.  [default: half of what is free there]"
    ),
    click.option("--max-model-len", type=click.IntRange(min=2), help="Longest prompt plus answer, in tokens."),
    click.option("--max-num-seqs", type=click.IntRange(min=1), help="Sequences that run at once."),
    click.option("--max-num-batched-tokens", type=click.IntRange(min=1), help="Tokens in one engine step."),
    click.option(
        "--num-speculative-tokens",
        type=click.IntRange(min=0),  # the engine says how many are too many: importing it would slow every --help
        help="Guess tokens from the text so far, check them in one step.  [default: 4; 0 is off]",
    ),
    click.option(
        "--prefix-caching/--no-prefix-caching", default=True, help="Reuse computed prefixes; never changes an answer."
    ),
]

_SAMPLING_FLAGS: list[Decorator] = [
    click.option(
        "--max-tokens", type=click.IntRange(min=1), help="Tokens to write at most.  [default: 128; in a chat 1024]"
    ),
    click.option("-t", "--temperature", type=float, help="0 always takes the most likely token."),
    click.option("--top-p", type=float, help="Sample from the smallest set with this probability."),
    click.option("--top-k", type=int, help="Sample from the k most likely tokens; 0 is off."),
    click.option("--min-p", type=float, help="Drop tokens below this share of the most likely one's probability."),
    click.option("--repetition-penalty", type=float, help="Above 1 discourages tokens that were seen."),
    click.option("--presence-penalty", type=float, help="Subtracted once from tokens that were written."),
    click.option("--frequency-penalty", type=float, help="Subtracted for each time a token was written."),
    click.option("--seed", type=int, help="Same seed and prompt, same text."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End the answer before this text; may be repeated."),
    click.option("--min-tokens", type=click.IntRange(min=0), help="Do not end before this many tokens."),
    click.option("--ignore-eos", is_flag=True, default=None, help="Do not end at the end-of-text token."),
]
_SAMPLING_NAMES: tuple[str, ...] = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
)
_SAMPLING_NAMES += ("frequency_penalty", "seed", "stop", "min_tokens", "ignore_eos")


def _apply(function: Callable[..., Any], flags: list[Decorator]) -> Callable[..., Any]:
    for flag in reversed(flags):
        function = flag(function)
    return function


def engine_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the engine's flags; the command receives them as one `options: EngineOptions`."""

    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        options = EngineOptions(**{name: values.pop(name) for name in EngineOptions.__dataclass_fields__})
        return function(options=options, **values)

    return _apply(wrapper, _ENGINE_FLAGS)


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the sampling flags; the command receives those that were given as one dict `sampling`."""

    @functools.wraps(function)
    def wrapper(**values: Any) -> Any:
        given = {name: values.pop(name) for name in _SAMPLING_NAMES}
        return function(sampling={name: value for name, value in given.items() if value not in (None, ())}, **values)

    return _apply(wrapper, _SAMPLING_FLAGS)
