"""Chunk rules: given a request and the tokens on offer, where this step's chunk ends.

`vllm-0.32` is the rule as it is; `exact` stops at every boundary, so that chunk ends depend on the prompt alone; `fast`
stops only where a state is going to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from statemark.align.frame import Frame
from statemark.align.positions import Prefill
from statemark.align.rules.exact import ExactRule
from statemark.align.rules.fast import FastRule
from statemark.align.rules.stock import StockRule
from statemark.errors import ConfigurationError


class Rule(Protocol):
    """A chunk rule of one server."""

    name: str
    frame: Frame

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        """How many of the `offer` tokens from position `start` to run in this step: between 0 and `offer`."""
        ...

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int:
        """The same for a request that comes after another prefill in its step. It may wait for the next one (0): since
        the first prefill of a step always advances, everybody's turn comes."""
        ...


RULES: dict[str, Callable[[Frame], Rule]] = {"vllm-0.32": StockRule, "exact": ExactRule, "fast": FastRule}


def make_rule(name: str, frame: Frame) -> Rule:
    if name not in RULES:
        raise ConfigurationError(f"unknown rule {name!r}", hint=f"known are {', '.join(RULES)}")
    return RULES[name](frame)


__all__ = ["RULES", "ExactRule", "FastRule", "Rule", "StockRule", "make_rule"]
