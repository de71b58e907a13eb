"""`statemark explain`: where and why the second of two prompts leaves the first, and what the cache would reuse."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from statemark.engine.chat import ChatTemplate
from statemark.errors import ConfigurationError, InvalidRequestError
from statemark.models.tokenizer import Tokenizer, load_tokenizer
from statemark.simulate.replay import Replay
from statemark.simulate.traces import TraceRequest

_EXAMPLES = """\b
Examples:
  statemark explain first.json second.json --model ./tiny
  statemark explain first.tokens second.tokens
"""
_AROUND = 8  # tokens shown on each side of the place where the prompts part


@dataclass(frozen=True)
class Prompt:
    """Token ids with their turn positions; `roles`: whose message begins at 0 and at each turn position, if known."""

    ids: list[int]
    turns: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()

    def role(self, position: int) -> str | None:
        return self.roles[bisect_right(self.turns, position)] if self.roles else None


class _Reader:
    """Token files as they are; chat requests through the model's template."""

    def __init__(self, model: str | None) -> None:
        self.tokenizer: Tokenizer | None = load_tokenizer(model) if model is not None else None

    def read(self, file: Path) -> Prompt:
        text = file.read_text(encoding="utf-8", errors="replace")
        try:
            data = json.loads(text)
        except ValueError:
            data = text.replace(",", " ").split()
        if isinstance(data, dict) and "messages" in data:
            return self._chat(file, data)
        if isinstance(data, dict):
            data = data.get("prompt_token_ids", data.get("prompt"))
        if isinstance(data, str) and self.tokenizer is not None:
            return Prompt(self.tokenizer.encode(data))
        try:
            ids = [int(item) for item in data] if isinstance(data, list) else []
        except (TypeError, ValueError):
            ids = []
        if not ids or not all(0 <= i < 2**31 for i in ids):
            raise ConfigurationError(
                f"{file} holds neither token ids nor a chat request",
                hint="give token ids, or a JSON object with messages (or a prompt) and --model",
            )
        return Prompt(ids)

    def _chat(self, file: Path, data: dict[str, Any]) -> Prompt:
        if self.tokenizer is None:
            raise ConfigurationError(f"{file} is a chat request", hint="give --model, whose template renders it")
        source = self.tokenizer.chat_template
        if source is None:
            raise ConfigurationError("this model has no chat template", hint="give token ids instead")
        inner = self.tokenizer._inner

        def encode(text: str) -> tuple[list[int], list[tuple[int, int]]]:
            encoding = inner.encode(text, add_special_tokens=False)
            return encoding.ids, encoding.offsets

        try:
            prompt = ChatTemplate(source, self.tokenizer.special_tokens).prompt(
                encode,
                data["messages"],
                tools=data.get("tools"),
                add_generation_prompt=data.get("add_generation_prompt", True),
                template_kwargs=data.get("chat_template_kwargs"),
            )
        except InvalidRequestError as error:
            raise ConfigurationError(f"{file}: {error.message}", hint=error.hint) from None
        roles = tuple(message["role"] for message in data["messages"])
        # A turn position at the beginning of each message but the first, and one at the generation header: only then
        # is it known which is whose.
        known = len(prompt.turn_positions) == len(roles)
        return Prompt(prompt.token_ids, prompt.turn_positions, (*roles, "generation header") if known else ())

    def words(self, ids: list[int]) -> str:
        if self.tokenizer is None:
            return " ".join(map(str, ids))
        return json.dumps(self.tokenizer.decode(ids, skip_special_tokens=False), ensure_ascii=False)


@click.command(epilog=_EXAMPLES)
@click.argument("first", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("second", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "-m", "--model", metavar="FOLDER|ID", envvar="STATEMARK_MODEL", help="Its template and tokenizer are used."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(first: Path, second: Path, model: str | None, as_json: bool) -> None:
    """Show where prompt SECOND leaves prompt FIRST, and what the cache reuses after FIRST was answered.

    Each file holds token ids (JSON or separated by white space) or a chat request as sent to /v1/chat/completions.
    Nothing is computed: it is the cache alone, with memory to spare.
    """
    reader = _Reader(model)
    a, b = reader.read(first), reader.read(second)
    replay = Replay(1 << 50)
    reused = [_ask(replay, prompt) for prompt in (a, b, b)]
    shared = _common(a.ids, b.ids)
    role = b.role(shared) if shared < len(b.ids) else None
    result = {
        "first_tokens": len(a.ids),
        "second_tokens": len(b.ids),
        "shared": shared,
        "first_different": shared if shared < min(len(a.ids), len(b.ids)) else None,
        "role": role,
        "reused": reused[1],
        "computed": len(b.ids) - reused[1],
        "lost": max(0, min(shared, len(b.ids) - 1) - reused[1]),
        "reused_when_repeated": reused[2],
    }
    if as_json:
        click.echo(json.dumps(result, sort_keys=True))
        return
    click.echo(f"first     {len(a.ids):,} tokens")
    click.echo(f"second    {len(b.ids):,} tokens")
    if shared == len(b.ids):
        click.echo(f"shared    {shared:,}: all of the second")
    elif shared == len(a.ids):
        click.echo(f"shared    {shared:,}: all of the first; the second goes on")
    else:
        where = f", in the message of role {role}" if role is not None else ""
        click.echo(f"shared    {shared:,}; they part at token {shared:,}{where}")
        click.echo(f"  before  {reader.words(b.ids[max(0, shared - _AROUND) : shared])}")
        click.echo(f"  first   {reader.words(a.ids[shared : shared + _AROUND])}")
        click.echo(f"  second  {reader.words(b.ids[shared : shared + _AROUND])}")
    click.echo(
        f"reused    {reused[1]:,}; {result['computed']:,} to compute, {result['lost']:,} of them for want of a mark"
    )
    click.echo(f"repeated  {reused[2]:,} reused if the second is asked again")


def _ask(replay: Replay, prompt: Prompt) -> int:
    """Tokens that this prompt reuses; it is in the cache afterwards."""
    tokens = np.array(prompt.ids, dtype=np.int32)
    before = replay.result.computed
    replay.run(TraceRequest("", "", 0.0, tokens[:0], tokens, 1, prompt.turns))
    return len(tokens) - (replay.result.computed - before)


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
