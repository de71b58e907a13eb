"""One loaded model under several engines: with the cache, without it, with a fault. Asks and times; decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statemark.cache import PAGE_TOKENS
from statemark.engine.chat import ChatPrompt
from statemark.engine.core import Engine
from statemark.engine.memory import automatic_cache_bytes
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.outputs import OutputBuilder
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.sampler import Sampler
from statemark.engine.text_engine import TextEngine
from statemark.errors import ConfigurationError, InvalidRequestError, StatemarkError
from statemark.kernels import Runtime
from statemark.models import load_model, load_tokenizer, resolve_model_folder

ANSWER = 64  # tokens of an answer at most
_LONGEST = 4096  # of a prompt and its answer: the tour needs no more, whatever the model could
_SLOTS = 64  # states that a cache holds beside its pages: more than the tour makes
_PROMPTS = 4  # pages for so many longest prompts
_WARM_UP = 64  # tokens


@dataclass(frozen=True)
class Reply:
    """What came of one request. `cached`: prompt tokens that were not computed; `seconds`: to the first token."""

    text: str
    digest: str
    cached: int
    seconds: float

    @property
    def answer(self) -> str:
        """Without what the model thought."""
        return self.text.rsplit("</think>", 1)[-1].strip()


class Stage:
    """Loads a model folder or hub id once; `engine` opens engines on it."""

    def __init__(
        self,
        model: str | Path,
        *,
        threads: int = 0,
        isa: str | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        folder = resolve_model_folder(model)
        self._tokenizer = load_tokenizer(folder)
        self._runtime = Runtime(threads, isa)
        self._model = load_model(folder, runtime=self._runtime, progress=progress)
        self._requests = 0
        self.spec = self._model.spec
        self.isa, self.threads = self._runtime.isa, self._runtime.threads
        self.max_model_len = min(_LONGEST, self.spec.max_model_len)
        self._front = self.engine(caching=False)

    def engine(self, executor: type[ModelExecutor] = ModelExecutor, *, caching: bool = True) -> TextEngine:
        spec = self.spec
        pages = -(-self.max_model_len // PAGE_TOKENS) * _PROMPTS
        engine = Engine(
            executor(self._model, self._runtime),
            Sampler(self._runtime),
            cache_bytes=min(automatic_cache_bytes(), _SLOTS * spec.slot_bytes + pages * spec.page_bytes),
            enable_prefix_caching=caching,
            max_model_len=self.max_model_len,
        )
        return TextEngine(engine, self._tokenizer, model=spec, runtime=self._runtime)

    def warm_up(self, engine: TextEngine) -> None:
        """The first steps of an engine touch fresh memory; nobody's first token shall pay for that."""
        count = min(_WARM_UP, self.max_model_len - 2)
        request = EngineRequest(
            request_id="warm-up",
            prompt_token_ids=tuple(i % self.spec.vocab_size for i in range(count)),
            params=SamplingParams(temperature=0.0, max_tokens=2, logprobs=20),
            use_cache=False,
        )
        ask(engine, request)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> ChatPrompt:
        try:
            return self._front.render_chat(messages)
        except InvalidRequestError as error:
            raise ConfigurationError(
                f"the tour is a chat with a system message, and this model can't render it: {error.message}",
                hint="name a chat model, or none for the one that comes with statemark",
            ) from None

    def request(self, prompt: ChatPrompt) -> EngineRequest:
        self._requests += 1
        return EngineRequest(
            request_id=f"tour-{self._requests}",
            prompt_token_ids=tuple(prompt.token_ids),
            params=SamplingParams(temperature=0.0, max_tokens=ANSWER, logprobs=20, seed=0),
            eos_token_ids=self._front.eos_token_ids,
            turn_positions=prompt.turn_positions,
        )


def ask(engine: TextEngine, request: EngineRequest) -> Reply:
    """One request alone to its end."""
    engine.add(request)
    builder = OutputBuilder(request, None, engine.token_text)
    while engine.has_work():
        for delta in engine.step():
            if delta.error is not None:
                raise StatemarkError(f"the engine failed: {delta.error}")
            builder.add(delta)
    output = builder.output
    return Reply(
        text=output.outputs[0].text,
        digest=output.digest(),
        cached=output.num_cached_tokens,
        seconds=output.metrics.time_to_first_token or 0.0,
    )


def marks_along(engine: TextEngine, token_ids: Sequence[int]) -> tuple[int, ...]:
    """Positions of the marks that lie on this prompt: those whose digest is that of its first tokens."""
    tokens = np.array(token_ids, dtype=np.int32)
    index = engine.engine.cache.index
    chain = index.chain("")
    chain.page(tokens, len(tokens) // PAGE_TOKENS)
    return tuple(
        sorted(
            mark.position
            for mark in index.marks()
            if mark.position <= len(tokens) and chain.at(tokens, mark.position) == mark.digest
        )
    )
