"""The scheduler class for `--scheduler-cls statemark.vllm.Scheduler`: vLLM's own, with another chunk cut.

Two methods that decide how many tokens a prefill gets are overridden, and both ask a rule of `align`. The rest of
scheduling is vLLM's, and so are these two where the rule isn't used. Importing this module imports no vLLM.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, cast

from statemark.align.positions import Prefill
from statemark.align.rules import Rule
from statemark.vllm.activation import Activation, decide
from statemark.vllm.metrics import stamp
from statemark.vllm.report import report, report_off
from statemark.vllm.settings import read_settings


class BoundaryCut:
    """Mixed into one of vLLM's schedulers. `statemark` says what became of it on this engine."""

    statemark: Activation | None = None
    advanced_in: int | None = None  # the step in which a prefill last got tokens
    reports_itself = True
    _rule: Rule | None = None
    _last_cut = -1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        scheduler: Any = self
        self.statemark = decide(scheduler, read_settings(scheduler.vllm_config.additional_config, os.environ))
        report(scheduler, self.statemark)

    def use(self, rule: Rule | None) -> None:
        """Cut by this rule from now on; None for vLLM's own cut."""
        self._rule = rule

    def _mamba_block_aligned_split(self, request: Any, num_new_tokens: int, *computed: Any, **named: Any) -> Any:
        """How many of the tokens on offer this request runs in this step.

        Never 0, unless a prefill before it in the same step advances: then `exact` may have it wait for the next step.
        `computed` are tokens found in the cache at admission, local and external. Where vLLM's own cut is used,
        whatever a later version passes here is passed on.
        """
        rule = self._rule
        if rule is None:
            return cast(Any, super())._mamba_block_aligned_split(request, num_new_tokens, *computed, **named)
        start = request.num_computed_tokens + sum(computed) + sum(named.values())
        known = request.num_tokens
        view = Prefill(request.num_prompt_tokens, known, request.shared_prefix_boundary)
        if start >= view.end:
            return num_new_tokens
        # A prompt's last token may be padded with rows for drafts, which are no tokens of the prompt.
        offer = min(num_new_tokens, known - start)
        behind = self.advanced_in == cast(Any, self).current_step
        count = rule.cut_behind(view, start, offer) if behind else rule.cut(view, start, offer)
        if count == offer < num_new_tokens and start + num_new_tokens <= rule.frame.grid.after(start):
            count = num_new_tokens
        self._last_cut = count
        return count

    def _reserve_prefill_lookahead(self, request: Any, *arguments: Any, **named: Any) -> Any:
        """vLLM's reserve for multi-module drafters comes after its cut and can take back a whole chunk. The rule has
        kept the reserve already, so it is asked for only where an encoder's limits shortened the chunk in between."""
        own = cast(Any, super())._reserve_prefill_lookahead
        if self._rule is None:
            return own(request, *arguments, **named)
        num_computed_tokens, num_new_tokens = (*arguments, *named.values())
        if num_computed_tokens >= max(request.num_prompt_tokens, request.num_tokens - 1):
            return num_new_tokens
        count = num_new_tokens
        if count != self._last_cut:
            count = own(request, num_computed_tokens, num_new_tokens) or num_new_tokens
        if count:
            self.advanced_in = cast(Any, self).current_step
        return count

    def make_stats(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's statistics of a step, with the plugin's status for the metric."""
        return stamp(cast(Any, super()).make_stats(*args, **kwargs), self.statemark)


@cache
def scheduler_class(base: type) -> type:
    """`base`, one of vLLM's schedulers, with our cut."""
    return type(f"Statemark{base.__name__}", (BoundaryCut, base), {"__doc__": BoundaryCut.__doc__})


def make_scheduler(*args: Any, **kwargs: Any) -> Any:
    """What vLLM calls as its scheduler class: the async or the plain base, as the configuration has resolved.

    With STATEMARK_VLLM=off, vLLM's own scheduler and nothing of ours.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    config = kwargs["vllm_config"] if "vllm_config" in kwargs else args[0]
    base = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    settings = read_settings(config.additional_config, os.environ)
    if settings.rule is None:
        report_off(settings)
        return base(*args, **kwargs)
    return scheduler_class(base)(*args, **kwargs)


Scheduler = make_scheduler  # under a class's name, as vLLM's flag wants one
