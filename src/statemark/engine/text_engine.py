"""A loaded model with its tokenizer, its chat template and its engine: text in, text out, one step at a time.

What the offline API and the server both stand on. Owns the putting together; knows neither HTTP nor whole answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from statemark.engine.chat import ChatPrompt, ChatTemplate
from statemark.engine.core import Engine
from statemark.engine.detokenize import TokenTexts
from statemark.engine.disk import disk_options
from statemark.engine.interrupts import interrupts_after
from statemark.engine.memory import automatic_cache_bytes, parse_bytes
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.output_processor import OutputProcessor
from statemark.engine.outputs import TextDelta
from statemark.engine.params import Structure
from statemark.engine.request import EngineRequest
from statemark.engine.sampler import Sampler
from statemark.engine.structured import Constraint, Grammars
from statemark.errors import ConfigurationError, InvalidRequestError
from statemark.kernels import Runtime
from statemark.models import (
    ModelSpec,
    Tokenizer,
    load_model,
    load_tokenizer,
    read_generation_defaults,
    resolve_model_folder,
)

DRAFTS = 4  # tokens guessed for a request in a step: wrong ones cost little while one stream runs

Progress = Callable[[str, int, int], None]


class TextEngine:
    """Requests in by `add`, text out by `step`. One thread only, except for encoding, decoding and rendering."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        model: ModelSpec,
        runtime: Runtime,
        sampling_defaults: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.model = model
        self.isa = runtime.isa
        self.threads = runtime.threads
        self.eos_token_ids = frozenset(model.eos_token_ids) | frozenset(tokenizer.eos_token_ids)
        self.sampling_defaults = dict(sampling_defaults or {})
        self.notices = [*model.notices, *engine.notices]
        self.texts = TokenTexts(tokenizer)
        self._grammars = Grammars(tokenizer.to_json, engine.executor.vocab_size, self.eos_token_ids)
        self._longest_token = tokenizer.longest_token()
        self._processor = OutputProcessor(self.texts, engine)
        source = tokenizer.chat_template if chat_template is None else chat_template
        self.chat_template = source  # None where the model has none
        self._template = None if source is None else ChatTemplate(source, tokenizer.special_tokens)

    @property
    def max_model_len(self) -> int:
        return self.engine.max_model_len

    # --- requests, from the engine's thread -----------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request; InvalidRequestError if it can't be served."""
        if request.params.structure is not None and request.constraint is None:
            request = replace(request, constraint=self.constraint(request.params.structure))
        self.engine.add_request(request)
        self._processor.add(request)

    def abort(self, request_id: str) -> None:
        self._processor.abort(request_id)
        self.engine.abort(request_id)

    def has_work(self) -> bool:
        return self.engine.has_work()

    def step(self) -> list[TextDelta]:
        """One engine step."""
        with interrupts_after():
            return self._processor.process(self.engine.step())

    def close(self, seconds: float = 10.0) -> None:
        """End: write to the cache directory what isn't there yet, for so long at most."""
        self.engine.close(seconds)

    # --- text, from any thread ------------------------------------------------------------------------------

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._check_size(text)
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def constraint(self, structure: Structure) -> Constraint:
        """A grammar compiled for this vocabulary, once; InvalidRequestError if no answer can follow it."""
        return self._grammars.compile(structure)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary."""
        return self.tokenizer.id(token)

    def token_text(self, token_id: int) -> str:
        return self.texts.text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts.raw(token_id)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        """The prompt of a conversation; `options` are those of `ChatTemplate.prompt`."""
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template", hint="give one with chat_template, or send a plain prompt"
            )
        return self._template.prompt(self._encode_with_spans, messages, **options)

    def _encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        self._check_size(text)
        return self.tokenizer.encode_with_spans(text, add_special_tokens=False)

    def _check_size(self, text: str) -> None:
        """Refuse what can't fit before work is spent on it. Four: normalisation may make a text that much shorter."""
        most = 4 * self.max_model_len * self._longest_token
        if len(text) > most:
            raise InvalidRequestError(
                f"a text of {len(text):,} characters can't fit {self.max_model_len:,} tokens",
                hint="shorten the prompt, or raise max_model_len",
                param="prompt",
            )


def load_text_engine(
    model: str | Path,
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
    chat_template: str | Path | None = None,
    progress: Progress | None = None,
    executor: type[ModelExecutor] = ModelExecutor,
) -> TextEngine:
    """Load a model folder or hub id.

    None leaves a limit to the engine; `cache_memory` "auto" is half of what is free; `cache_disk` "auto" half of
    what the file system of `cache_dir` has left. `executor` is another class only
    where a fault is planted on purpose.
    """
    template = None if chat_template is None else read_template(chat_template)
    disk = disk_options(cache_dir, cache_disk, enable_prefix_caching)
    folder = resolve_model_folder(model)
    tokenizer = load_tokenizer(folder)  # quick, and says what is wrong before gigabytes are read
    try:
        runtime = Runtime(num_threads, isa)
    except ValueError as error:
        raise ConfigurationError(str(error), hint="leave threads and isa out to take what fits this machine") from None
    loaded = load_model(
        folder,
        dtype=dtype,
        quantization=quantization,
        max_model_len=max_model_len,
        runtime=runtime,
        progress=progress,
    )
    limits: dict[str, Any] = {"max_num_batched_tokens": max_num_batched_tokens, "max_num_seqs": max_num_seqs}
    engine = Engine(
        executor(loaded, runtime),
        Sampler(runtime),
        cache_bytes=automatic_cache_bytes() if cache_memory == "auto" else parse_bytes("cache_memory", cache_memory),
        enable_prefix_caching=enable_prefix_caching,
        max_model_len=max_model_len,
        disk=disk,
        num_speculative_tokens=num_speculative_tokens,
        **{name: value for name, value in limits.items() if value is not None},
    )
    return TextEngine(
        engine,
        tokenizer,
        model=loaded.spec,
        runtime=runtime,
        sampling_defaults=read_generation_defaults(folder).sampling,
        chat_template=template,
    )


def read_template(template: str | Path) -> str:
    """A template's source: given itself, or by the name of a file."""
    if isinstance(template, str) and any(sign in template for sign in ("{{", "{%", "\n")):
        return template
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the chat template {str(template)!r} can't be read: {error}") from None
