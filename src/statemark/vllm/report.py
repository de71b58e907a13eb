"""What the log says at start: the rule with its guarantee and its price, and the findings of `check` for this engine.

WARNING where there is something to do, INFO otherwise, once per engine. Knows vLLM's objects through `layout` and
`model` only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from statemark.align.configuration import Setup
from statemark.align.findings import Finding, Level, find, settled_by
from statemark.align.oracle import groups_of
from statemark.align.planner import make_plan, make_prompts
from statemark.align.platforms import Usage
from statemark.errors import StatemarkError
from statemark.vllm.activation import Activation, Status
from statemark.vllm.layout import Layout, has_states, read_layout
from statemark.vllm.model import budget_of, flags_of, machine_of, shape_of
from statemark.vllm.settings import Settings

# Under vLLM's own logger, so that its handlers, format and level hold.
log = logging.getLogger("vllm.statemark")

GUARANTEES = {
    "exact": (
        "a chunk ends at every boundary, so a prompt is computed in the same chunks whatever was cached before it; "
        "less than one kernel chunk left for the first prefill of a step is the one exception"
    ),
    "fast": (
        "no wrong entry, and every hit that the cache is meant to allow; chunks depend on what was cached, so the last "
        "digits of log-probabilities do too"
    ),
}


def report(scheduler: Any, activation: Activation) -> None:
    """Log what became of the cut, then the findings. A report that fails must not take the server with it."""
    level = logging.WARNING if activation.status.is_alarming else logging.INFO
    try:
        for line in _cut_lines(activation):
            log.log(level, "%s", line)
        if activation.layout is not None:
            rule = activation.rule.name if activation.rule is not None else None
            _log_findings(scheduler, activation.layout, rule)
    except Exception:
        log.warning("statemark: the start-up report failed; the server runs on", exc_info=True)


def report_off(settings: Settings) -> None:
    """The flag names our scheduler, and it was told to stay away."""
    log.info("statemark: vLLM's own cut is used (off): switched off by %s", settings.source)


def observe(scheduler: Any) -> None:
    """The same for a scheduler of vLLM's own: the findings alone."""
    try:
        if not has_states(scheduler):
            return
        layout = read_layout(scheduler, shape_of(scheduler.vllm_config).kernel_chunk)
        _log_findings(scheduler, layout, None)
    except StatemarkError as error:
        log.warning("statemark: no check of the prefix cache: %s", error)
    except Exception:
        log.warning("statemark: the check of the prefix cache failed; the server runs on", exc_info=True)


def _cut_lines(activation: Activation) -> Iterator[str]:
    status = activation.status
    if status is not Status.ACTIVE or activation.layout is None or activation.rule is None:
        yield f"statemark: vLLM's own cut is used ({status.value}): {activation.detail}"
        return
    frame = activation.layout.frame
    yield (
        f"statemark: prefills are cut by the rule '{activation.rule.name}' ({activation.detail}) on the state grid of "
        f"{frame.grid} tokens; self-test passed in {activation.seconds:.2f} s"
    )
    yield f"statemark: '{activation.rule.name}' guarantees: {GUARANTEES[activation.rule.name]}"
    yield f"statemark: '{activation.rule.name}' costs: {price(activation.layout, activation.rule.name)}"


def price(layout: Layout, rule: str) -> str:
    """Steps of one long prompt on an idle server at this budget, under the rule and under vLLM's own cut."""
    frame, longest = layout.frame, layout.geometry.max_model_len - 1
    tokens = min(longest, max(16 * frame.grid.tokens, 4 * frame.step_limit))
    plan = make_plan(frame, groups_of(layout.geometry), make_prompts([tokens], None), [rule, "vllm-0.32"])
    ours, stock = plan.rules
    theirs = f"{stock.steps}" if stock.prompts[0].done else "no end"
    other = " (other prompts use what is left of a step)" if rule == "exact" and ours.steps > stock.steps else ""
    return (
        f"a prompt of {tokens:,} tokens takes {ours.steps} steps at a budget of {frame.step_limit:,}, with vLLM's own "
        f"cut {theirs}{other}"
    )


def setup_of(scheduler: Any, layout: Layout) -> Setup:
    """The resolved engine in the form that the findings read."""
    config = scheduler.vllm_config
    return Setup(
        name=str(config.model_config.model),
        shape=shape_of(config),
        flags=flags_of(scheduler),
        machine=machine_of(config),
        usage=Usage.SERVER,
        geometry=layout.geometry,
        budget=budget_of(scheduler),
        frame=layout.frame,
        memory=scheduler.kv_cache_config.num_blocks * layout.geometry.bytes_per_block,
        memory_known=True,
        concurrency=None,
    )


def open_findings(scheduler: Any, layout: Layout, rule: str | None) -> tuple[Finding, ...]:
    """Findings that the active rule leaves; all of them where vLLM's own cut is used."""
    settled = settled_by(rule)
    return tuple(f for f in find(setup_of(scheduler, layout)) if f.code not in settled)


def _log_findings(scheduler: Any, layout: Layout, rule: str | None) -> None:
    for finding in open_findings(scheduler, layout, rule):
        level = logging.INFO if finding.level is Level.INFO else logging.WARNING
        log.log(level, "statemark: %s: %s Change: %s.", finding.code, finding.sentence, finding.remedy)
