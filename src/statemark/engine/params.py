"""What a caller may ask of one request: sampling, stopping, log-probabilities. Knows no engine state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from statemark.errors import InvalidRequestError

MAX_LOGPROBS = 20


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen and when a request ends. Names and defaults are those that vLLM users know.

    A token is a function of (logits, seed, position) only. `seed=None` draws a seed when the request is
    made; give one to repeat a sampled answer. `temperature=0` is greedy. `logprobs=k` returns the chosen
    token's log-probability and the k most likely ones, before temperature, penalties and bias.
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
    detokenize: bool = field(default=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        self._check_numbers()

    @classmethod
    def from_fields(cls, values: dict[str, Any]) -> SamplingParams:
        """Build from a mapping; an unknown name is an error that lists it."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InvalidRequestError(
                f"unknown sampling field{'s' if len(unknown) > 1 else ''}: {', '.join(unknown)}",
                hint=f"known fields are {', '.join(sorted(known))}",
                param=unknown[0],
            )
        return cls(**values)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def _check_numbers(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise InvalidRequestError(f"{name} must be {rule}, got {getattr(self, name)!r}", param=name)

        def number(name: str) -> float:
            value = getattr(self, name)
            need(isinstance(value, int | float) and not isinstance(value, bool), name, "a number")
            need(math.isfinite(value), name, "finite")
            return float(value)

        def integer(name: str, low: int, rule: str, optional: bool = False) -> None:
            value = getattr(self, name)
            if optional and value is None:
                return
            need(isinstance(value, int) and not isinstance(value, bool) and value >= low, name, rule)

        integer("n", 1, "a whole number of at least 1")
        need(self.n <= 128, "n", "at most 128")
        need(0.0 <= number("temperature") <= 100.0, "temperature", "between 0 and 100")
        need(0.0 < number("top_p") <= 1.0, "top_p", "above 0 and at most 1")
        if self.top_k == -1:  # vLLM's spelling of "off"
            object.__setattr__(self, "top_k", 0)
        integer("top_k", 0, "0 or -1 (off) or a positive whole number")
        need(0.0 <= number("min_p") <= 1.0, "min_p", "between 0 and 1")
        need(0.0 < number("repetition_penalty") <= 10.0, "repetition_penalty", "above 0 and at most 10")
        need(-2.0 <= number("presence_penalty") <= 2.0, "presence_penalty", "between -2 and 2")
        need(-2.0 <= number("frequency_penalty") <= 2.0, "frequency_penalty", "between -2 and 2")
        integer("seed", -(2**63), "a whole number of 64 bits", optional=True)
        need(self.seed is None or self.seed < 2**64, "seed", "a whole number of 64 bits")
        integer("max_tokens", 1, "a whole number of at least 1, or none", optional=True)
        integer("min_tokens", 0, "a whole number of at least 0")
        need(self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens")
        for name in ("logprobs", "prompt_logprobs"):
            integer(name, 0, f"between 0 and {MAX_LOGPROBS}, or none", optional=True)
            need((getattr(self, name) or 0) <= MAX_LOGPROBS, name, f"at most {MAX_LOGPROBS}")
        need(all(isinstance(s, str) and s for s in self.stop), "stop", "non-empty strings")
        need(
            all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in self.stop_token_ids),
            "stop_token_ids",
            "token ids of at least 0",
        )
        if self.logit_bias is not None:
            need(isinstance(self.logit_bias, dict), "logit_bias", "a mapping from token id to a number")
            need(
                all(
                    isinstance(t, int) and t >= 0 and isinstance(b, int | float) and math.isfinite(b) and abs(b) <= 100
                    for t, b in self.logit_bias.items()
                ),
                "logit_bias",
                "a mapping from token ids to numbers between -100 and 100",
            )
