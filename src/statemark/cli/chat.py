"""`statemark chat`: a conversation that shows what each turn reused. Answers go to stdout, talk to stderr."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import click

from statemark.cli.loading import describe, load, model_path
from statemark.cli.options import EngineOptions, engine_options, sampling_options
from statemark.cli.running import InterruptedAnswer, Timing, run_requests
from statemark.cli.talk import dim, report_error, say
from statemark.demo.document import SMALLEST, make_document
from statemark.engine.outputs import TextDelta
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.errors import InvalidRequestError
from statemark.parsing import HEADER_TOKENS, AnswerParser, Content, Event, Reasoning, opens_reasoning
from statemark.server.answer import Answer
from statemark.server.served import ServedModel

_COMMANDS = """\
/system TEXT  set the system message and start over
/reset        start over
/quit         leave (so does Ctrl-D)"""


@click.command()
@click.option("--system", metavar="TEXT", help="System message to start with.")
@sampling_options
@engine_options
def command(system: str | None, sampling: dict[str, Any], options: EngineOptions) -> None:
    """Talk to a model. After each turn you see how many prompt tokens came from the cache.

    Each line is one turn. Turns may also be piped in: `printf 'hello\\nand now?\\n' | statemark chat -m ./tiny`.
    """
    model = load(options, model_path(options))
    params = SamplingParams.from_fields({"max_tokens": 1024} | dict(model.sampling_defaults) | sampling)
    say(f"{describe(model)}. /quit leaves, /help lists commands.")
    if options.model is None and system is None:
        system = _facts_to_ask_about()
    conversation = Conversation(model, params, system)
    for line in _lines():
        word, _, rest = line.strip().partition(" ")
        if not word:
            continue
        if word == "/quit":
            return
        if word == "/reset":
            conversation.reset(conversation.system)
            say("started over")
        elif word == "/system":
            conversation.reset(rest.strip() or None)
            say("system message set; started over" if rest.strip() else "no system message; started over")
        elif word.startswith("/"):
            say(_COMMANDS)
        else:
            conversation.turn(line.strip())


def _facts_to_ask_about() -> str:
    """A system message for the bundled model, which can do nothing without; says what may be asked."""
    document = make_document(SMALLEST)
    say("This model looks facts up in its system message and can do nothing else. It has these:")
    say(dim(document.text))
    say(f"Ask, for instance: {document.questions[0].text} {document.questions[1].text}")
    return document.system


def _lines() -> Iterator[str]:
    """Turns: with a prompt on a terminal, plainly otherwise."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401 - gives input() its line editing and history

    while True:
        try:
            yield input("> ")
        except EOFError:
            say()
            return


class Conversation:
    """The messages so far and how they grow."""

    def __init__(self, model: ServedModel, params: SamplingParams, system: str | None) -> None:
        self.model = model
        self.params = params
        self._numbers = itertools.count(1)
        self.reset(system)

    def reset(self, system: str | None) -> None:
        self.system = system
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def turn(self, text: str) -> None:
        """Ask, print the answer as it comes, say what it took. A turn that can't be served leaves no trace."""
        self.messages.append({"role": "user", "content": text})
        request = self._request()
        shown = _Shown(self.model, request)
        try:
            answer, timing = run_requests(self.model, [request], shown.add)
        except InterruptedAnswer as stopped:
            answer, timing = stopped.answer, stopped.timing
            click.echo(" [stopped]", nl=False)
        except InvalidRequestError as error:
            self.messages.pop()
            report_error(error.message, error.hint)
            return
        click.echo()
        self.messages.append({"role": "assistant"} | shown.message())
        say(dim(_figures(answer, timing)))

    def _request(self) -> EngineRequest:
        prompt = self.model.render_chat(self.messages)
        return EngineRequest(
            request_id=f"turn-{next(self._numbers)}",
            prompt_token_ids=tuple(prompt.token_ids),
            params=self.params,
            eos_token_ids=self.model.eos_token_ids,
            turn_positions=prompt.turn_positions,
            turn_roles=prompt.turn_roles,
        )


class _Shown:
    """Prints an answer as it comes, what the model thinks to stderr, and keeps both apart."""

    def __init__(self, model: ServedModel, request: EngineRequest) -> None:
        header = model.decode(request.prompt_token_ids[-HEADER_TOKENS:])
        self._parser = AnswerParser(model.chat_format, in_reasoning=opens_reasoning(header, None))
        self._content = self._reasoning = ""

    def add(self, delta: TextDelta) -> None:
        self._print(self._parser.push(delta.text))
        if delta.finish_reason is not None:
            self._print(self._parser.finish())

    def message(self) -> dict[str, Any]:
        """As templates know a turn: they drop what was thought, or don't."""
        thought = {"reasoning_content": self._reasoning} if self._reasoning else {}
        return {"content": self._content} | thought

    def _print(self, events: list[Event]) -> None:
        for event in events:
            match event:
                case Reasoning(text):
                    self._reasoning += text
                    click.echo(dim(text), nl=False, err=True)
                case Content(text):
                    if self._reasoning and not self._content:
                        click.echo(err=True)
                    self._content += text
                    click.echo(text, nl=False)


def _figures(answer: Answer, timing: Timing) -> str:
    usage = answer.usage()
    return (
        f"[{answer.cached(0)} of {usage['prompt_tokens']} prompt tokens cached; "
        f"{usage['completion_tokens']} written; {timing.words()}]"
    )
