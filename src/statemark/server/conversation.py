"""A conversation that is to be answered, from whatever API it came, and how it becomes an engine request."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from statemark.engine.chat import ChatPrompt
from statemark.engine.params import SamplingParams, Structure
from statemark.engine.request import EngineRequest
from statemark.engine.structured import Constraint
from statemark.errors import InvalidRequestError
from statemark.parsing.call_grammar import call_grammar
from statemark.parsing.formats import THINK_END, opens_reasoning
from statemark.server.handling import Handling
from statemark.server.hygiene import normalized
from statemark.server.served import ServedModel
from statemark.server.state import ServerState
from statemark.server.tool_use import ToolUse, offered

log = logging.getLogger("statemark.server")


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """Messages and tools as chat templates take them. `continues`: the last message is the answer's beginning."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    template_kwargs: Mapping[str, Any] | None = None
    use: ToolUse = field(default_factory=ToolUse)

    async def render(self, state: ServerState, model: ServedModel, *, cache_salt: str | None = None) -> ChatPrompt:
        """Without a salt the tokens alone, with nothing remembered: a count isn't known to belong to any client."""
        messages = self.messages
        if state.settings.normalize_system:
            messages, changed = await state.text.run(normalized, messages)
            if changed:
                state.metrics.normalized()
        return await state.text.run(
            model.render_chat,
            messages,
            tools=self.tools,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continues,
            template_kwargs=self.template_kwargs,
            cache_salt=cache_salt,
        )

    async def request(
        self, state: ServerState, model: ServedModel, params: SamplingParams, handling: Handling
    ) -> EngineRequest:
        if model.special_markers and (self.tools or model.chat_format.thinks):
            params = replace(params, skip_special_tokens=False)  # or the reader would never see what it looks for
        prompt = await self.render(state, model, cache_salt=handling.cache_salt)
        opened = self._opens_reasoning(model, prompt)
        free_until = model.token_id(THINK_END) if opened else None
        constraint = None
        if self.use.must_call is not None and not (opened and free_until is None):
            constraint = await state.text.run(_calls, model, self.use, self.tools)
        return EngineRequest(
            request_id=handling.name,
            prompt_token_ids=tuple(prompt.token_ids),
            params=params,
            eos_token_ids=model.eos_token_ids,
            turn_positions=prompt.turn_positions,
            turn_roles=prompt.turn_roles,
            constraint=constraint or await compiled(state, model, params),
            free_until=free_until,
            **handling.engine_fields(),
        )

    def _opens_reasoning(self, model: ServedModel, prompt: ChatPrompt) -> bool:
        """An answer that begins inside a think section is held to a structure or to calls only after that."""
        last = self.messages[-1].get("content") if self.continues else None
        return opens_reasoning(model.decode(prompt.token_ids[-16:]), last if isinstance(last, str) else None)


def _calls(model: ServedModel, use: ToolUse, tools: Sequence[Mapping[str, Any]] | None) -> Constraint | None:
    """Holds an answer to the calls that `use` asks for; None where that can't be done: then the reader sees to it."""
    form = model.chat_format.tools
    callable_now = {name: schema for name, schema in offered(tools).items() if use.must_call in ("", name)}
    if form is None:
        return None
    grammar = call_grammar(form, callable_now, one_call=use.one_call, token_id=model.token_id)
    if grammar is None:
        return None
    try:
        return model.constraint(Structure("grammar", grammar))
    except InvalidRequestError as error:
        log.debug("calls are not enforced: %s", error)
        return None


async def compiled(state: ServerState, model: ServedModel, params: SamplingParams) -> Constraint | None:
    """The grammar of the answer's structure, if it has one: compiling may take a while."""
    return None if params.structure is None else await state.text.run(model.constraint, params.structure)
