"""Whether the cut is used on this engine, and why not where it isn't. Decided once, before the first request.

Asks, in order: is there anything to cut for, is the layout one that `align` models, is this a vLLM that is known, does
the cut pass its self-test here. Replaces nothing itself; knows no log lines.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

from statemark.align.frame import Frame
from statemark.align.oracle import groups_of
from statemark.align.positions import Prefill
from statemark.align.rules import Rule, make_rule
from statemark.align.selftest import faults
from statemark.vllm import versions
from statemark.vllm.layout import Layout, UnknownLayoutError, has_states, read_layout
from statemark.vllm.model import shape_of
from statemark.vllm.settings import Settings


class Status(Enum):
    """What became of the plugin's cut. Where it is not ACTIVE, vLLM's own is used."""

    ACTIVE = "active"
    NOTHING_TO_DO = "nothing to do"
    UPSTREAM = "vLLM does it"
    UNKNOWN_LAYOUT = "unknown layout"
    UNKNOWN_VERSION = "unknown version"
    FAILED_TEST = "failed self-test"

    @property
    def is_alarming(self) -> bool:
        """Whether the operator asked for the cut and doesn't get it, for a reason that is worth a look."""
        return self in (Status.UNKNOWN_LAYOUT, Status.UNKNOWN_VERSION, Status.FAILED_TEST)


@dataclass(frozen=True)
class Activation:
    """The decision. `layout` is None where it could not be read; `detail` is a sentence."""

    status: Status
    settings: Settings
    detail: str
    rule: Rule | None = None
    layout: Layout | None = None
    seconds: float = 0.0  # of the self-test


@dataclass
class _Through:
    """A scheduler's own methods, as the oracle drives cuts: the split, then what vLLM calls after it."""

    name: str
    frame: Frame
    scheduler: Any

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        self.scheduler.advanced_in = None
        return self._cut(request, start, offer)

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int:
        self.scheduler.advanced_in = self.scheduler.current_step
        return self._cut(request, start, offer)

    def _cut(self, request: Prefill, start: int, offer: int) -> int:
        view = SimpleNamespace(
            num_computed_tokens=start,
            num_prompt_tokens=request.prompt,
            num_tokens=request.known,
            shared_prefix_boundary=request.junction,
        )
        count = self.scheduler._mamba_block_aligned_split(view, offer)
        return int(self.scheduler._reserve_prefill_lookahead(view, start, count))


def decide(scheduler: Any, settings: Settings) -> Activation:
    """The decision for a constructed scheduler of ours, whose rule is set where it is to be used.

    Raises ConfigurationError where recurrent groups disagree about their block: no cut can be right for both, vLLM's
    own included.
    """
    assert settings.rule is not None  # the factory makes no scheduler of ours where it is switched off
    if not has_states(scheduler):
        detail = "no recurrent states in align mode: the model has none, or the prefix cache is off"
        return Activation(Status.NOTHING_TO_DO, settings, detail)
    try:
        layout = read_layout(scheduler, shape_of(scheduler.vllm_config).kernel_chunk)
    except UnknownLayoutError as error:
        return Activation(Status.UNKNOWN_LAYOUT, settings, str(error))
    different = versions.changed(versions.installed())
    if different:
        return _stand_down(settings, layout, different, _problems(scheduler, layout, settings.rule))
    begun = time.perf_counter()
    rule = make_rule(settings.rule, layout.frame)
    scheduler.use(rule)
    problems = _problems(scheduler, layout, settings.rule)
    seconds = time.perf_counter() - begun
    if problems:
        scheduler.use(None)
        detail = f"the rule {settings.rule} fails its self-test on this layout: {problems[0]}"
        return Activation(Status.FAILED_TEST, settings, detail, layout=layout, seconds=seconds)
    return Activation(Status.ACTIVE, settings, f"chosen by {settings.source}", rule, layout, seconds)


def _stand_down(
    settings: Settings, layout: Layout, different: tuple[str, ...], problems: tuple[str, ...]
) -> Activation:
    functions = ", ".join(different)
    if not problems:
        detail = f"vLLM's own cut passes the tests of the rule {settings.rule} on this layout (changed: {functions})"
        return Activation(Status.UPSTREAM, settings, detail, layout=layout)
    known = ", ".join(versions.KNOWN)
    detail = f"this vLLM differs from {known} in {functions}; a cut made for {known} is not used on it"
    return Activation(Status.UNKNOWN_VERSION, settings, detail, layout=layout)


def _problems(scheduler: Any, layout: Layout, rule: str) -> tuple[str, ...]:
    """What the oracle finds with the cut that this scheduler uses now; one that raises is a problem like any other."""
    geometry = layout.geometry
    cutter = _Through(rule, layout.frame, scheduler)
    longest = max(1, geometry.max_model_len - geometry.drafting.depth - 8)
    try:
        return faults(
            cutter,
            groups_of(geometry),
            longest=longest,
            drafts=geometry.drafting.depth,
            same_chunks=rule == "exact",
        )
    except Exception as error:  # whatever a changed vLLM raises: the stock cut stays
        return (f"{type(error).__name__}: {error}",)
    finally:
        scheduler.advanced_in = None
