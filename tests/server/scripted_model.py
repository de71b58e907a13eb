"""A served model that answers what a test wrote down: the fake model's letters, in the order of a script."""

from __future__ import annotations

from collections.abc import Sequence

from statemark.engine.chat import ChatPrompt
from statemark.engine.outputs import TextDelta
from statemark.engine.request import EngineRequest
from statemark.parsing import TOOL_FORMATS, ChatFormat
from tests.server.fake_model import END, FakeModel, row


class ScriptedModel(FakeModel):
    """Each choice is answered with the next script, `step` letters at a time, and ends as at an end-of-text token.

    `header` is put at the end of every rendered chat, as templates do that open a think section.
    """

    name = "scripted"

    def __init__(self, form: str = "hermes") -> None:
        super().__init__()
        self.chat_format = ChatFormat(TOOL_FORMATS[form], thinks=True)
        self.scripts: list[str] = []
        self.letters = 1
        self.header = ""
        self._left: dict[tuple[str, int], str] = {}

    def _advance(self, request: EngineRequest) -> list[TextDelta]:
        deltas = []
        top = request.params.logprobs
        for index in range(request.params.n):
            key = (request.request_id, index)
            if key not in self.written:
                continue
            if key not in self._left:
                self._left[key] = self.scripts.pop(0)
            most = request.params.max_tokens or self.max_model_len
            count = min(self.letters, most - len(self.written[key]))
            text, self._left[key] = self._left[key][:count], self._left[key][count:]
            self.written[key] += self.encode(text)
            reason = "length" if len(self.written[key]) >= most else None if self._left[key] else "stop"
            tokens = self.encode(text) + ([END] if reason == "stop" else [])
            deltas.append(
                TextDelta(
                    request_id=request.request_id,
                    index=index,
                    text=text,
                    token_ids=tokens,
                    logprobs=None if top is None else [row(token, top) for token in tokens],
                    finish_reason=reason,
                )
            )
            if reason is not None:
                del self.written[key], self._left[key]
        if not any(key[0] == request.request_id for key in self.written):
            self.requests.pop(request.request_id, None)
        return deltas

    def render_chat(self, messages: Sequence[object], **options: object) -> ChatPrompt:
        prompt = super().render_chat(messages, **options)  # type: ignore[arg-type]
        if not options.get("add_generation_prompt", True):
            return prompt
        text = prompt.text + self.header
        return ChatPrompt(text, self.encode(text), prompt.turn_positions, prompt.turn_roles)
