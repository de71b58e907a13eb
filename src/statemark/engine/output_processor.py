"""From the engine's steps to text: one stream of text a choice, stop strings, reasons for the end.

Shared by the offline API and the server. Knows the engine only as somebody to tell that a choice has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from statemark.engine.detokenize import TextStream, TokenTexts
from statemark.engine.outputs import TextDelta
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest, StepOutput


class EngineEnds(Protocol):
    """How a front end ends what the engine would go on with."""

    def finish(self, request_id: str, index: int) -> None: ...
    def abort(self, request_id: str) -> None: ...


@dataclass
class _Choice:
    params: SamplingParams
    stream: TextStream | None  # None where no text was asked for


class OutputProcessor:
    """Keeps what each running choice needs for its text; forgets it when the choice ends.

    processor.add(request)          # once the engine took it
    deltas = processor.process(engine.step())
    """

    def __init__(self, texts: TokenTexts, engine: EngineEnds) -> None:
        self._texts = texts
        self._engine = engine
        self._live: dict[str, dict[int, _Choice]] = {}

    def add(self, request: EngineRequest) -> None:
        params = request.params
        self._live[request.request_id] = {
            index: _Choice(params, self._text_stream(params) if params.detokenize else None)
            for index in range(params.n)
        }

    def abort(self, request_id: str) -> None:
        """Forget a request. The caller tells the engine."""
        self._live.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._live)

    def process(self, steps: Iterable[StepOutput]) -> list[TextDelta]:
        """Deltas in the order of the news. News of requests that were forgotten meanwhile is dropped."""
        deltas: list[TextDelta] = []
        for step in steps:
            choice = self._live.get(step.request_id, {}).get(step.index)
            if choice is None:
                continue
            if step.finish_reason == "error":
                deltas.extend(self._failed(step))
            else:
                deltas.append(self._delta(step, choice))
        return deltas

    def _text_stream(self, params: SamplingParams) -> TextStream:
        return TextStream(
            self._texts,
            stop=params.stop,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
        )

    def _delta(self, step: StepOutput, choice: _Choice) -> TextDelta:
        text, count, stop = self._text(step, choice)
        finish_reason = step.finish_reason
        stop_reason: int | str | None = _stop_reason(step, choice.params)
        if stop is not None:
            if finish_reason is None:
                self._engine.finish(step.request_id, step.index)
            finish_reason, stop_reason = "stop", stop
        if finish_reason is not None:
            self._end(step.request_id, step.index)
        return TextDelta(
            request_id=step.request_id,
            index=step.index,
            text=text,
            token_ids=step.new_token_ids[:count],
            logprobs=None if step.new_logprobs is None else step.new_logprobs[:count],
            prompt_logprobs=step.prompt_logprobs,
            num_cached_tokens=step.num_cached_tokens,
            lookup=step.lookup,
            begun=step.begun,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _text(self, step: StepOutput, choice: _Choice) -> tuple[str, int, str | None]:
        """(new text, how many of the new tokens count, the stop string that ended it)."""
        stream, tokens = choice.stream, step.new_token_ids
        if stream is None:
            return "", len(tokens), None
        hidden = step.stop_token_id is not None and not choice.params.include_stop_str_in_output
        text = ""
        for count, token_id in enumerate(tokens[:-1] if hidden else tokens, 1):
            text += stream.push(token_id)
            if stream.stopped_by is not None:
                return text, count, stream.stopped_by
        if step.finish_reason is not None:
            text += stream.flush()
        return text, len(tokens), stream.stopped_by

    def _failed(self, step: StepOutput) -> list[TextDelta]:
        """An error ends all choices: the request can't be answered as it was asked."""
        self._engine.abort(step.request_id)
        error = step.error or "the engine gave no reason"
        return [
            TextDelta(
                request_id=step.request_id,
                index=index,
                text=choice.stream.flush() if choice.stream is not None else "",
                num_cached_tokens=step.num_cached_tokens,
                finish_reason="error",
                error=error,
            )
            for index, choice in self._live.pop(step.request_id).items()
        ]

    def _end(self, request_id: str, index: int) -> None:
        choices = self._live[request_id]
        del choices[index]
        if not choices:
            del self._live[request_id]


def _stop_reason(step: StepOutput, params: SamplingParams) -> int | None:
    """As in vLLM: the end-of-text token gives none, an id of `stop_token_ids` gives itself."""
    return step.stop_token_id if step.stop_token_id in params.stop_token_ids else None
