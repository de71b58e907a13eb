"""What a caller may ask of one request: sampling, stopping, log-probabilities. Knows no engine state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from statemark.errors import InvalidRequestError
from statemark.words import counted

MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOPS = 128
MAX_STOP_CHARACTERS = 8192  # of all stop strings: each choice looks for each of them at every character that it writes

# Below this, logits divided by the temperature leave float32's range, and the most likely token always won anyway.
GREEDY_BELOW = 1e-5


STRUCTURES = ("json_object", "json", "regex", "choice", "grammar")


@dataclass(frozen=True)
class Structure:
    """What an answer must look like. `kind` is one of STRUCTURES.

    `source` is a JSON schema, a regular expression, a JSON list of strings, or a grammar in Lark's form or llama.cpp's
    (GBNF); empty for "json_object", which is any JSON object.
    """

    kind: str
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Names and defaults are those that vLLM users know.

    A token is a function of (logits, seed, position) only. `seed=None` draws a seed when the request is
    made; give one to repeat a sampled answer. `temperature=0` is greedy. `logprobs=k` returns the chosen
    token's log-probability and the k most likely ones, before temperature, penalties and bias.

        SamplingParams(temperature=0.7, top_p=0.9, max_tokens=64, stop="\\n\\n", seed=1)
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True
    structure: Structure | None = None

    def __post_init__(self) -> None:
        self._check_sampling()
        self._check_lengths()
        self._check_stops()
        self._check_bias()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
            self._need(isinstance(getattr(self, name), bool), name, "true or false")
        ok = self.structure is None or (isinstance(self.structure, Structure) and self.structure.kind in STRUCTURES)
        self._need(ok, "structure", f"a Structure of a kind among {', '.join(STRUCTURES)}")
        if self.stop and not self.detokenize:
            raise InvalidRequestError(
                "stop strings need the text, but detokenize is false",
                hint="use stop_token_ids, or leave detokenize true",
                param="stop",
            )

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> SamplingParams:
        """Build from a mapping; an unknown name is an error that lists it."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(str(name) for name in set(values) - known)
        if unknown:
            raise InvalidRequestError(
                f"unknown sampling field{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}",
                hint=f"known fields are {', '.join(sorted(known))}",
                param=unknown[0],
            )
        return cls(**values)

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def _need(self, ok: bool, name: str, rule: str) -> None:
        if not ok:
            raise InvalidRequestError(f"{name} must be {rule}, got {getattr(self, name)!r}", param=name)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _number(self, name: str, rule: str) -> float:
        """The field as a finite float; NumPy's numbers are as welcome as Python's."""
        value = getattr(self, name)
        self._need(_is_number(value), name, rule)
        self._set(name, float(value))
        return float(value)

    def _integer(self, name: str, low: int, high: int | None, rule: str) -> int:
        value = getattr(self, name)
        self._need(_is_integer(value) and value >= low and (high is None or value <= high), name, rule)
        self._set(name, int(value))
        return int(value)

    def _check_sampling(self) -> None:
        need, number = self._need, self._number
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("min_p", 0.0, 1.0),
            ("presence_penalty", -2.0, 2.0),
            ("frequency_penalty", -2.0, 2.0),
        ):
            rule = f"a number between {low:g} and {high:g}"
            need(low <= number(name, rule) <= high, name, rule)
        for name, high in (("top_p", 1.0), ("repetition_penalty", 10.0)):
            rule = f"a number above 0 and at most {high:g}"
            need(0.0 < number(name, rule) <= high, name, rule)
        if _is_integer(self.top_k) and self.top_k == -1:  # vLLM's spelling of "off"
            self._set("top_k", 0)
        self._integer("top_k", 0, None, "0 or -1 (off) or a positive whole number")
        if self.seed is not None:
            self._integer("seed", -(2**63), 2**64 - 1, "a whole number of 64 bits, or none")

    def _check_lengths(self) -> None:
        self._integer("n", 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}")
        self._integer("min_tokens", 0, None, "a whole number of at least 0")
        if self.max_tokens is not None:
            most = self._integer("max_tokens", 1, None, "a whole number of at least 1, or none")
            self._need(self.min_tokens <= most, "min_tokens", f"at most max_tokens ({most})")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._integer(name, 0, MAX_LOGPROBS, f"a whole number from 0 to {MAX_LOGPROBS}, or none")

    def _check_stops(self) -> None:
        rule = "a non-empty string or a list of them"
        given = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._need(given is None or _is_list(given), "stop", rule)
        stop = () if given is None else tuple(given)
        self._need(all(isinstance(text, str) and text for text in stop), "stop", rule)
        size = sum(map(len, stop))
        if len(stop) > MAX_STOPS or size > MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                f"stop has {counted(len(stop), 'string')} with {counted(size, 'character')}; at most {MAX_STOPS} with "
                f"{MAX_STOP_CHARACTERS:,} are possible",
                param="stop",
            )
        self._set("stop", stop)
        rule = "a list of token ids of at least 0"
        listed = self.stop_token_ids
        self._need(listed is None or _is_list(listed), "stop_token_ids", rule)
        ids = () if listed is None else tuple(listed)
        self._need(all(_is_integer(token) and token >= 0 for token in ids), "stop_token_ids", rule)
        self._set("stop_token_ids", tuple(int(token) for token in ids))

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        rule = "a mapping from token ids to numbers between -100 and 100"
        self._need(isinstance(self.logit_bias, Mapping), "logit_bias", rule)
        for token, bias in self.logit_bias.items():
            ok = _is_integer(token) and token >= 0 and _is_number(bias) and abs(bias) <= 100
            self._need(ok, "logit_bias", rule)
        self._set("logit_bias", {int(token): float(bias) for token, bias in self.logit_bias.items()})


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:  # a whole number beyond float64
        return False


def _is_list(value: Any) -> bool:
    """Something that can be read twice: an error message shows it after it was looked at."""
    return isinstance(value, Iterable) and hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping)
