"""What the server and the commands need of a loaded model. Imports no HTTP: commands without a server use it too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from statemark.cache import MarkOutline
from statemark.engine.chat import ChatPrompt
from statemark.engine.outputs import TextDelta
from statemark.engine.params import Structure
from statemark.engine.structured import Constraint
from statemark.parsing import ChatFormat
from statemark.server.async_engine import Backend


class ServedModel(Backend, Protocol):
    """A loaded model under its public name. Everything but `Backend`'s methods may be called from any thread.

    `fingerprint` names engine version, weights, precision and instruction set: equal ones mean equal bits.
    """

    name: str
    fingerprint: str
    precision: str
    isa: str
    threads: int
    created: int
    max_model_len: int
    vocab_size: int  # ids of tokens lie below it
    notices: Sequence[str]
    sampling_defaults: Mapping[str, Any]
    eos_token_ids: frozenset[int]
    chat_format: ChatFormat  # how this model marks reasoning and tool calls
    special_markers: bool  # its markers are special tokens, which decoding leaves out unless told otherwise

    def report(self) -> list[str]:
        """Lines for an operator: what runs, in which precision, and what the cache can hold."""

    def stats(self) -> Mapping[str, float]:
        """Counters and gauges by name, see `Engine.stats`. Engine thread only, like the next one."""

    def reset_prefix_cache(self) -> int:
        """Drop every mark that no running request reads; returns how many."""

    def marks(self, limit: int) -> Sequence[MarkOutline]:
        """At most `limit` marks, see `cache.outline`. Engine thread only."""

    def step(self) -> Iterable[TextDelta]: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def token_id(self, token: str) -> int | None: ...
    def constraint(self, structure: Structure) -> Constraint:
        """A grammar compiled for this vocabulary; InvalidRequestError if no answer can follow it."""

    def token_text(self, token_id: int) -> str: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        """`options` are those of `ChatTemplate.prompt`."""
