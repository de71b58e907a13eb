"""`statemark explain`: where and why the second of two prompts leaves the first, and what the cache would reuse."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np

from statemark.cache import Explanation
from statemark.cache.explain import WHY, explain
from statemark.engine.chat import ChatTemplate
from statemark.errors import ConfigurationError, InvalidRequestError
from statemark.models.tokenizer import Tokenizer, load_tokenizer
from statemark.server.errors import ApiError
from statemark.server.messages import template_messages
from statemark.server.protocol import ChatRequest, parse
from statemark.simulate.replay import Replay
from statemark.simulate.traces import TraceRequest
from statemark.words import counted

_EXAMPLES = """\b
Examples:
  statemark explain first.json second.json --model ./tiny
  statemark explain first.tokens second.tokens
"""
_LIKE_A_REQUEST = "give the body of a request to /v1/chat/completions"
_AROUND = 8  # tokens shown on each side of the place where the prompts part


@dataclass(frozen=True)
class Prompt:
    """Token ids; of a chat, also where its messages end and whose text begins at 0 and at each of these positions."""

    ids: list[int]
    turns: tuple[int, ...] = ()
    roles: tuple[str, ...] = ()
    salt: str = ""


class _Reader:
    """Token files as they are; chat requests through the model's template."""

    def __init__(self, model: str | None) -> None:
        self.tokenizer: Tokenizer | None = load_tokenizer(model) if model is not None else None

    def read(self, file: Path) -> Prompt:
        text = file.read_text(encoding="utf-8-sig", errors="replace")
        try:
            data = json.loads(text)
        except ValueError:  # ids and nothing else
            data = [int(word) if word.isascii() and word.isdigit() else word for word in text.replace(",", " ").split()]
        except RecursionError:
            data = None
        if isinstance(data, dict) and "messages" in data:
            return self._chat(file, text)
        salt = data.get("cache_salt") or "" if isinstance(data, dict) else ""
        if isinstance(data, dict):
            data = data.get("prompt_token_ids", data.get("prompt"))
        if isinstance(data, str) and self.tokenizer is not None:
            data = self.tokenizer.encode(data)
        ids = data if isinstance(data, list) else []
        if not ids or not all(type(item) is int and 0 <= item < 2**31 for item in ids) or not isinstance(salt, str):
            raise ConfigurationError(
                f"{file} holds neither token ids nor a chat request",
                hint="give token ids, or a JSON object with messages (or a prompt) and --model",
            )
        return Prompt(ids, salt=salt)

    def _chat(self, file: Path, body: str) -> Prompt:
        if self.tokenizer is None:
            raise ConfigurationError(f"{file} is a chat request", hint="give --model, whose template renders it")
        source = self.tokenizer.chat_template
        if source is None:
            raise ConfigurationError("this model has no chat template", hint="give token ids instead")
        try:
            request = parse(body.encode(), ChatRequest)
            prompt = ChatTemplate(source, self.tokenizer.special_tokens).prompt(
                partial(self.tokenizer.encode_with_spans, add_special_tokens=False),
                template_messages(request.messages),
                tools=None if request.tool_choice == "none" else request.tools,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                template_kwargs=request.chat_template_kwargs,
            )
        except (InvalidRequestError, ApiError) as error:
            hint = error.hint if isinstance(error, InvalidRequestError) else None
            raise ConfigurationError(f"{file}: {error.message}", hint=hint or _LIKE_A_REQUEST) from None
        return Prompt(prompt.token_ids, prompt.turn_positions, prompt.turn_roles, request.cache_salt or "")

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
    _ask(replay, a)
    found, again = _ask(replay, b), _ask(replay, b)
    shared = _common(a.ids, b.ids)
    result = {
        "first_tokens": len(a.ids),
        "second_tokens": len(b.ids),
        "salts_differ": a.salt != b.salt,
        **asdict(found),
        "shared": shared,
        "lost": found.lost,
        "computed": len(b.ids) - found.reused,
        "reused_when_repeated": again.reused,
    }
    del result["prompt_tokens"]
    if as_json:
        click.echo(json.dumps(result, sort_keys=True))
        return
    click.echo(f"first     {counted(len(a.ids), 'token')}")
    click.echo(f"second    {counted(len(b.ids), 'token')}")
    if shared == len(b.ids):
        click.echo(f"shared    {shared:,}: all of the second")
    elif shared == len(a.ids):
        click.echo(f"shared    {shared:,}: all of the first; the second goes on")
    else:
        where = f", in the message of role {found.role}" if found.role is not None else ""
        click.echo(f"shared    {shared:,}; they part at token {shared:,}{where}")
        click.echo(f"  before  {reader.words(b.ids[max(0, shared - _AROUND) : shared])}")
        click.echo(f"  first   {reader.words(a.ids[shared : shared + _AROUND])}")
        click.echo(f"  second  {reader.words(b.ids[shared : shared + _AROUND])}")
    lost = f"; {found.lost:,} of them for want of a mark: {WHY[found.veto]}" if found.veto is not None else ""
    salts = "; their salts differ, so nothing is shared" if a.salt != b.salt else ""
    click.echo(f"pages     {counted(found.page_match, 'token')} in whole pages{salts}")
    click.echo(f"reused    {found.reused:,}; {result['computed']:,} to compute{lost}")
    click.echo(f"repeated  {again.reused:,} reused if the second is asked again")


def _ask(replay: Replay, prompt: Prompt) -> Explanation:
    """What the cache has for this prompt; it is in the cache afterwards."""
    tokens = np.array(prompt.ids, dtype=np.int32)
    found = explain(
        replay.cache.find(replay.cache.index.chain(prompt.salt), tokens), len(tokens), prompt.turns, prompt.roles
    )
    replay.run(TraceRequest(prompt.salt, "", 0.0, tokens[:0], tokens, 1, prompt.turns))
    return found


def _common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
