"""The entry point `vllm.general_plugins`: has every scheduler that vLLM builds reported on.

vLLM calls this in each of its processes, sometimes twice. It has no hook that sees the final cache configuration, so
one constructor is wrapped to look at the finished object; nothing is replaced and no decision changes.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from statemark.vllm.settings import VARIABLE


def register() -> None:
    """Idempotent. Does nothing with STATEMARK_VLLM=off."""
    if os.environ.get(VARIABLE, "").strip().lower() == "off":
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    _watch(Scheduler)


def _watch(scheduler: Any) -> None:
    original = scheduler.__init__
    if getattr(original, "watched_by_statemark", False):
        return

    @functools.wraps(original)
    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not getattr(self, "reports_itself", False):
            from statemark.vllm.report import observe

            observe(self)

    built.watched_by_statemark = True  # type: ignore[attr-defined]
    scheduler.__init__ = built
