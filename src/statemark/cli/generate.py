"""`statemark generate`: complete prompts. Completions go to stdout, figures to stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from statemark.cli.loading import describe, load, model_path
from statemark.cli.options import EngineOptions, engine_options, sampling_options
from statemark.cli.running import Timing, run_requests
from statemark.cli.talk import say
from statemark.engine.outputs import TextDelta
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.server.answer import Answer
from statemark.server.served import ServedModel

_EXAMPLES = """\b
Examples:
  statemark generate --model ./tiny "Once upon a time" -t 0
  statemark generate --model ./tiny --prompt-file story.txt --max-tokens 200 --json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("prompts", nargs=-1, metavar="PROMPT...")
@click.option("--prompt-file", "files", type=click.File(), multiple=True, help="Read a prompt from a file; - is stdin.")
@click.option("-n", "n", type=click.IntRange(min=1), default=1, help="Completions of each prompt.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@sampling_options
@engine_options
def command(
    prompts: tuple[str, ...],
    files: tuple[Any, ...],
    n: int,
    as_json: bool,
    sampling: dict[str, Any],
    options: EngineOptions,
) -> None:
    """Complete each PROMPT and print what the model writes.

    The text goes in as it is; `statemark chat` is for models that expect a conversation.
    """
    texts = [*prompts, *(_read(file) for file in files)]
    if not texts:
        raise click.UsageError("give a PROMPT or a --prompt-file", click.get_current_context())
    model = load(options, model_path(options))
    params = SamplingParams.from_fields({"max_tokens": 128} | dict(model.sampling_defaults) | sampling | {"n": n})
    requests = [
        EngineRequest(
            request_id=f"prompt-{number}",
            prompt_token_ids=tuple(model.encode(text)),
            params=params,
            eos_token_ids=model.eos_token_ids,
        )
        for number, text in enumerate(texts, 1)
    ]
    stream = len(texts) == n == 1 and not as_json
    answer, timing = run_requests(model, requests, _print_delta if stream else lambda delta: None)
    if as_json:
        click.echo(json.dumps(_as_json(model, texts, answer), sort_keys=True))
    elif stream:
        click.echo()
    else:
        _print_all(requests, answer)
    _report(model, answer, timing)


def _read(file: Any) -> str:
    try:
        return str(file.read())
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{Path(file.name).name} is not UTF-8 text: {error.reason}") from None


def _print_delta(delta: TextDelta) -> None:
    click.echo(delta.text, nl=False)


def _print_all(requests: Sequence[EngineRequest], answer: Answer) -> None:
    for number in range(len(requests)):
        for index, choice in enumerate(answer.choices(number), 1):
            which = f", completion {index}" if len(answer.choices(number)) > 1 else ""
            click.echo(f"--- prompt {number + 1}{which}")
            click.echo(choice.text)


def _as_json(model: ServedModel, texts: Sequence[str], answer: Answer) -> dict[str, Any]:
    """No times in it: equal input gives equal bytes."""
    return {
        "model": model.name,
        "system_fingerprint": model.fingerprint,
        "usage": answer.usage(),
        "prompts": [
            {
                "prompt": text,
                "prompt_tokens": len(answer.requests[number].prompt_token_ids),
                "cached_tokens": answer.cached(number),
                "choices": [
                    {
                        "text": choice.text,
                        "token_ids": choice.token_ids,
                        "finish_reason": choice.finish_reason,
                        "stop_reason": choice.stop_reason,
                    }
                    for choice in answer.choices(number)
                ],
            }
            for number, text in enumerate(texts)
        ],
    }


def _report(model: ServedModel, answer: Answer, timing: Timing) -> None:
    usage = answer.usage()
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    say(
        f"{usage['prompt_tokens']} prompt tokens ({cached} cached), {usage['completion_tokens']} generated; "
        f"{timing.words()}; {describe(model)}"
    )
