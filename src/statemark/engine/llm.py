"""The offline API: `LLM(model).generate(prompts, SamplingParams(...))`, with the names that vLLM users know.

Owns the checking of prompts, the loop over steps and the progress display. What is loaded is text_engine's business.
"""

from __future__ import annotations

import atexit
import hashlib
import struct
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from statemark import bundled
from statemark.engine.chat import ChatPrompt
from statemark.engine.outputs import OutputBuilder, RequestOutput, TextDelta
from statemark.engine.params import SamplingParams
from statemark.engine.progress import GenerationProgress
from statemark.engine.request import EngineRequest
from statemark.engine.text_engine import DRAFTS, Progress, TextEngine, load_text_engine
from statemark.errors import ConfigurationError, InvalidRequestError

Prompt = str | Mapping[str, Any]
Conversation = Sequence[Mapping[str, Any]]

_PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


class LLM:
    """A model in this process, answering lists of prompts.

        llm = LLM("./model", cache_memory="2GiB")
        for output in llm.generate(["Once upon a time"], SamplingParams(max_tokens=32)):
            print(output.outputs[0].text, output.num_cached_tokens)

    `model`: a folder, a hub id, or None for the small model that comes along. `seed` makes answers repeatable where
    SamplingParams names no seed of their own. `cache_memory`: bytes for pages and states, or a text like "2GiB".
    `cache_dir`: a directory where computed prefixes outlive the process, of at most `cache_disk` bytes.
    `num_speculative_tokens`: tokens guessed from the text so far and checked in one step; never changes an answer.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        max_num_batched_tokens: int | None = None,
        max_num_seqs: int | None = None,
        num_speculative_tokens: int = DRAFTS,
        enable_prefix_caching: bool = True,
        cache_memory: int | str = "auto",
        cache_dir: str | Path | None = None,
        cache_disk: int | str = "auto",
        num_threads: int = 0,
        isa: str | None = None,
        seed: int = 0,
        chat_template: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigurationError(f"seed must be a whole number, got {seed!r}")
        self._seed = seed
        self._requests = 0
        self.text_engine: TextEngine = load_text_engine(
            bundled_model() if model is None else model,
            dtype=dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            num_speculative_tokens=num_speculative_tokens,
            enable_prefix_caching=enable_prefix_caching,
            cache_memory=cache_memory,
            cache_dir=cache_dir,
            cache_disk=cache_disk,
            num_threads=num_threads,
            isa=isa,
            chat_template=chat_template,
            progress=progress,
        )
        if cache_dir is not None:
            atexit.register(_close, weakref.ref(self))

    def close(self) -> None:
        """Write to the cache directory what isn't there yet, for ten seconds at most; happens at exit by itself."""
        self.text_engine.close()

    @property
    def isa(self) -> str:
        """The instruction set in use; numbers are equal between runs on the same one."""
        return self.text_engine.isa

    @property
    def num_threads(self) -> int:
        return self.text_engine.threads

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.text_engine.max_model_len

    def get_tokenizer(self) -> Any:
        return self.text_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend (generation_config.json)."""
        return SamplingParams.from_fields(self.text_engine.sampling_defaults)

    def stats(self) -> dict[str, Any]:
        """The engine's counters."""
        return self.text_engine.engine.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer all prompts, in their order. A prompt is a text, or {"prompt_token_ids": [...], "cache_salt": "..."}.

        A prompt that can't be served is an InvalidRequestError that names it, before anything is computed. One that
        fails while it runs has `finish_reason` "error", and the others go on.
        """
        listed = _as_list(prompts)
        params = self._params_for(sampling_params, len(listed))
        return self._run(
            [self._request(prompt, p, i) for i, (prompt, p) in enumerate(zip(listed, params, strict=True))], use_tqdm
        )

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        cache_salt: str = "",
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them. Messages are {"role": ..., "content": ...}."""
        conversations = _conversations(messages)
        params = self._params_for(sampling_params, len(conversations))
        requests = []
        for i, (conversation, p) in enumerate(zip(conversations, params, strict=True)):
            with _named(i, len(conversations), "conversation"):
                prompt = self.text_engine.render_chat(
                    conversation,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    template_kwargs=chat_template_kwargs,
                    cache_salt=cache_salt,
                )
            request = self._engine_request(prompt.token_ids, p, cache_salt, prompt)
            requests.append((request, prompt.text))
        return self._run(requests, use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[TextDelta]:
        """The answer to one prompt as it comes; what is wrong with it is said at the first item.

        Closing the iterator ends the request. One at a time: a step's news would go to the wrong one.
        """
        (params,) = self._params_for(sampling_params, 1)
        request, _ = self._request(prompt, params, 0)
        self._refuse_if_busy()
        self.text_engine.add(request)
        running = params.n
        try:
            while running:
                for delta in self.text_engine.step():
                    running -= delta.finish_reason is not None
                    yield delta
        finally:
            if running:
                self.text_engine.abort(request.request_id)

    # --- from prompts to requests ---------------------------------------------------------------------------

    def _params_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> Sequence[SamplingParams]:
        params = self.get_default_sampling_params() if given is None else given
        several = [params] * count if isinstance(params, SamplingParams) else list(params)
        if len(several) != count:
            raise InvalidRequestError(
                f"{len(several)} sampling_params for {count} prompts", hint="give one for all, or one for each"
            )
        for item in several:
            if not isinstance(item, SamplingParams):
                raise InvalidRequestError(f"sampling_params must be SamplingParams, got {item!r}")
        return several

    def _request(self, prompt: Prompt, params: SamplingParams, i: int) -> tuple[EngineRequest, str | None]:
        text, ids, salt = _checked_prompt(prompt, f"prompt {i}")
        if ids is None:
            assert text is not None
            ids = self.text_engine.encode(text)
        return self._engine_request(ids, params, salt), text

    def _engine_request(
        self, ids: Sequence[int], params: SamplingParams, salt: str, chat: ChatPrompt | None = None
    ) -> EngineRequest:
        number = self._requests
        self._requests += 1
        if params.seed is None:
            params = replace(params, seed=_derived_seed(self._seed, number))
        return EngineRequest(
            request_id=str(number),
            prompt_token_ids=tuple(ids),
            params=params,
            eos_token_ids=self.text_engine.eos_token_ids,
            turn_positions=() if chat is None else chat.turn_positions,
            turn_roles=() if chat is None else chat.turn_roles,
            cache_salt=salt,
        )

    def _refuse_if_busy(self) -> None:
        if self.text_engine.has_work():
            raise InvalidRequestError("an answer is still being streamed", hint="read it to its end, or close() it")

    def _run(self, requests: Sequence[tuple[EngineRequest, str | None]], show: bool) -> list[RequestOutput]:
        """All requests to their end; however it ends, the engine holds nothing of them afterwards."""
        builders: dict[str, OutputBuilder] = {}
        self._refuse_if_busy()
        try:
            for i, (request, text) in enumerate(requests):
                with _named(i, len(requests), "prompt"):
                    self.text_engine.add(request)
                builders[request.request_id] = OutputBuilder(request, text, self.text_engine.token_text)
            with GenerationProgress([request for request, _ in requests], show) as progress:
                while self.text_engine.has_work():
                    for delta in self.text_engine.step():
                        builders[delta.request_id].add(delta)
                        progress.add(delta)
        finally:
            for request_id, builder in builders.items():
                if not builder.output.finished:
                    self.text_engine.abort(request_id)
        return [builder.output for builder in builders.values()]


def bundled_model() -> Path:
    """The folder of the model that comes with the package."""
    folder = bundled.path()
    if not (folder / "config.json").exists():
        raise ConfigurationError(
            "no model is named, and this installation has none of its own",
            hint="name a folder; `statemark make-model --like qwen3.5-0.8b --scale tiny ./tiny` writes one to try",
        )
    return folder


def _close(llm: weakref.ref[LLM]) -> None:
    found = llm()
    if found is not None:
        found.close()


def _derived_seed(seed: int, number: int) -> int:
    """Requests without a seed differ from each other, and not from those of the same script's next run."""
    counter = struct.pack("<QQ", seed & 0xFFFF_FFFF_FFFF_FFFF, number)
    return int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little")


def _named(i: int, count: int, what: str) -> AbstractContextManager[None]:
    return nullcontext() if count == 1 else _Named(f"{what} {i}")


class _Named(AbstractContextManager[None]):
    """Puts the place in the list before an error of one item."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidRequestError):
            raise InvalidRequestError(f"{self._name}: {error.message}", hint=error.hint, param=error.param) from None


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts must be a text, a mapping or a list of these, got {type(prompts).__name__}")
    if prompts and all(isinstance(item, int) for item in prompts):
        raise InvalidRequestError(
            "prompts is a list of numbers", hint='for one prompt of token ids give {"prompt_token_ids": [...]}'
        )
    return list(prompts)


def _checked_prompt(prompt: Prompt, where: str) -> tuple[str | None, Sequence[int] | None, str]:
    """(text, token ids, salt): one of the first two is None."""
    if isinstance(prompt, str):
        return prompt, None, ""
    if not isinstance(prompt, Mapping):
        raise InvalidRequestError(f"{where} must be a text or a mapping, got {type(prompt).__name__}", param="prompt")
    unknown = [str(key) for key in prompt if key not in _PROMPT_KEYS]
    if unknown:
        raise InvalidRequestError(
            f"{where} has an unknown key: {', '.join(unknown)}",
            hint=f"known are {', '.join(_PROMPT_KEYS)}",
            param="prompt",
        )
    text, ids, salt = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("cache_salt") or ""
    if (text is None) == (ids is None):
        raise InvalidRequestError(f"{where} must have either prompt or prompt_token_ids", param="prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"{where}: prompt must be a text, got {type(text).__name__}", param="prompt")
    if not isinstance(salt, str):
        raise InvalidRequestError(f"{where}: cache_salt must be a text, got {salt!r}", param="cache_salt")
    return text, None if ids is None else _checked_ids(ids, where), salt


def _checked_ids(ids: Any, where: str) -> list[int]:
    rule = f"{where}: prompt_token_ids must be a list of whole numbers"
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
        raise InvalidRequestError(f"{rule}, got {type(ids).__name__}", param="prompt_token_ids")
    listed = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    for token in listed:
        if isinstance(token, bool) or not isinstance(token, int):
            raise InvalidRequestError(f"{rule}, got {token!r}", param="prompt_token_ids")
    return listed


def _conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise InvalidRequestError("messages must be a list of messages or a list of conversations", param="messages")
    if messages and all(isinstance(item, Sequence) and not isinstance(item, str) for item in messages):
        return list(messages)  # type: ignore[arg-type]
    return [messages]  # type: ignore[list-item]
