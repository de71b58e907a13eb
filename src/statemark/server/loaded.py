"""The real served model: a text engine under a public name, with its identity and a report. Knows no HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statemark import __version__
from statemark.cache import MarkOutline, capacity, outline
from statemark.engine.chat import ChatPrompt
from statemark.engine.outputs import TextDelta
from statemark.engine.params import Structure
from statemark.engine.request import EngineRequest
from statemark.engine.structured import Constraint
from statemark.engine.text_engine import Progress, TextEngine, load_text_engine
from statemark.parsing import choose_format
from statemark.words import counted


class LoadedModel:
    """See `ServedModel`."""

    def __init__(self, text: TextEngine, name: str) -> None:
        self.text = text
        self.name = name
        self.created = int(time.time())
        self.precision = text.model.dtype
        self.isa = text.isa
        self.threads = text.threads
        self.fingerprint = f"statemark-{__version__}-{self.precision}-{self.isa}-{text.model.fingerprint[:16]}"
        self.max_model_len = text.max_model_len
        self.vocab_size = text.engine.executor.vocab_size
        self.max_num_seqs = text.engine.max_num_seqs
        self.notices: Sequence[str] = text.notices
        self.sampling_defaults: Mapping[str, Any] = text.sampling_defaults
        self.eos_token_ids = text.eos_token_ids
        self.choose_format()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        name: str | None = None,
        progress: Progress | None = None,
        **engine_arguments: Any,
    ) -> LoadedModel:
        """Load a folder or hub id; the name is its last part unless another is given."""
        text = load_text_engine(path, progress=progress, **engine_arguments)
        return cls(text, name or Path(path).resolve().name)

    def choose_format(self, *, tools: str = "auto", reasoning: str = "auto") -> None:
        """Set how answers are read, by name or, with "auto", as the chat template and the vocabulary say."""
        id_of = self.text.tokenizer.id
        self.chat_format = choose_format(
            self.text.chat_template, lambda token: id_of(token) is not None, tools=tools, reasoning=reasoning
        )
        markers = [found for marker in self.chat_format.markers() if (found := id_of(marker)) is not None]
        self.special_markers = any(self.text.texts.silent(marker) for marker in markers)

    def add(self, request: EngineRequest) -> None:
        self.text.add(request)

    def abort(self, request_id: str) -> None:
        self.text.abort(request_id)

    def has_work(self) -> bool:
        return self.text.has_work()

    def step(self) -> list[TextDelta]:
        return self.text.step()

    def stats(self) -> Mapping[str, float]:
        return self.text.engine.stats()

    def reset_prefix_cache(self) -> int:
        return self.text.engine.cache.reset()

    def marks(self, limit: int) -> list[MarkOutline]:
        return outline(self.text.engine.cache.index, limit)

    def close(self) -> None:
        self.text.close()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.text.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        return self.text.decode(ids)

    def token_id(self, token: str) -> int | None:
        return self.text.token_id(token)

    def constraint(self, structure: Structure) -> Constraint:
        return self.text.constraint(structure)

    def token_text(self, token_id: int) -> str:
        return self.text.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return self.text.token_bytes(token_id)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        return self.text.render_chat(messages, **options)

    def report(self) -> list[str]:
        cache = self.text.engine.cache
        stats = cache.stats()
        holds = capacity(cache.budget) if cache.enabled else "prefix caching is off"
        return [
            f"model    {self.name} ({self.text.model.architecture}), {self.precision}, "
            f"{self.text.model.weight_bytes / 1e6:,.1f} MB of weights",
            f"runs on  {self.threads} thread{'' if self.threads == 1 else 's'}, {self.isa}",
            f"context  {self.max_model_len:,} tokens, {counted(self.max_num_seqs, 'sequence')} at once",
            f"cache    {stats.bytes_total / 2**20:,.0f} MiB: {holds}",
            f"         {stats.bytes_per_token:,.0f} bytes a cached token, {stats.bytes_per_mark:,} bytes a mark; "
            "either kind may take the other's room",
            *self._disk(),
            f"chat     {self.chat_format}",
        ]

    def _disk(self) -> list[str]:
        tier = self.text.engine.disk
        if tier is None:
            return []
        stats = tier.stats()
        others = "" if not (count := tier.folder.others) else f"; {counted(count, 'file')} of other models"
        return [
            f"disk     {tier.folder.path}: {stats['disk_marks']:,} marks of this model, "
            f"{stats['disk_bytes'] / 2**20:,.0f} of {tier.folder.limit / 2**20:,.0f} MiB{others}; "
            f"reads {tier.pace.read_rate / 2**20:,.0f} MiB/s"
        ]
