"""Answers of /v1/completions, whole or in pieces, as plain data; the shapes of several servers become one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from statemark.errors import ServerError


@dataclass(frozen=True)
class Token:
    """A generated token and the likely ones at its place: (label, log-probability). A label is an id or a text."""

    label: str
    logprob: float
    top: tuple[tuple[str, float], ...]


@dataclass
class Reply:
    """`cached` is None where the server didn't say. Times in seconds on one clock; `arrivals`: (time, tokens)."""

    tokens: list[Token] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached: int | None = None
    fingerprint: str = ""
    sent: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0

    def take(self, data: dict[str, Any], now: float) -> None:
        """One JSON object: a whole answer, or the next piece of a streamed one."""
        if isinstance(data.get("error"), (dict, str)):
            raise ServerError("failed", f"the server broke off: {error_text(data)}")
        self.fingerprint = str(data.get("system_fingerprint") or self.fingerprint)
        choices = data.get("choices")
        if not isinstance(choices, list):
            raise ServerError("protocol", "an answer without choices", hint="is this an OpenAI-compatible server?")
        for choice in choices:
            self._choice(choice, now)
        if isinstance(data.get("usage"), dict):
            self._usage(data["usage"])
        timings = data.get("timings")
        if self.cached is None and isinstance(timings, dict) and isinstance(timings.get("cache_n"), int):
            self.cached = timings["cache_n"]

    def _choice(self, choice: Any, now: float) -> None:
        if not isinstance(choice, dict):
            raise ServerError("protocol", "a choice that is no object")
        said = choice.get("delta") or choice.get("message") or {}  # of a chat
        text = choice.get("text") or said.get("content") or said.get("reasoning_content") or said.get("reasoning") or ""
        found = tokens_of(choice.get("logprobs"))
        ids = choice.get("token_ids") or _ids_of(choice.get("logprobs"))
        self.tokens += found
        self.ids += ids
        self.prompt_ids = choice.get("prompt_token_ids") or self.prompt_ids
        self.text += text
        self.finish = choice.get("finish_reason") or self.finish
        count = len(ids) or len(found) or int(bool(text))
        if count:
            self.arrivals.append((now, count))

    def _usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
        self.completion_tokens = int(usage.get("completion_tokens") or 0)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            self.cached = details["cached_tokens"]


def tokens_of(logprobs: Any) -> list[Token]:
    """From OpenAI's four lists (a map of likely tokens each) or from a list of entries as chat has it."""
    if not isinstance(logprobs, dict):
        return []
    try:
        if isinstance(logprobs.get("content"), list):
            return [
                Token(
                    _label(entry),
                    float(entry["logprob"]),
                    tuple((_label(t), float(t["logprob"])) for t in entry.get("top_logprobs") or ()),
                )
                for entry in logprobs["content"]
            ]
        names, numbers = logprobs.get("tokens") or [], logprobs.get("token_logprobs") or []
        tops = logprobs.get("top_logprobs") or [{}] * len(names)
        return [
            Token(str(name), float(number), tuple((str(k), float(v)) for k, v in (top or {}).items()))
            for name, number, top in zip(names, numbers, tops, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ServerError("protocol", f"log-probabilities in a shape that is not known: {error!r}") from None


def _label(entry: dict[str, Any]) -> str:
    return f"id:{entry['id']}" if "id" in entry else str(entry["token"])


def _ids_of(logprobs: Any) -> list[int]:
    if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
        return [entry["id"] for entry in logprobs["content"] if isinstance(entry, dict) and "id" in entry]
    return []


def error_text(data: Any) -> str:
    """The words of an error object, wherever a server puts them."""
    error = data.get("error", data) if isinstance(data, dict) else data
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return str(error)[:400]
