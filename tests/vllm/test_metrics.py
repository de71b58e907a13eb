"""The status on its way from the engine's process to the metric."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from statemark.vllm import metrics, versions
from statemark.vllm.scheduler import scheduler_class
from tests.vllm import fakes


@pytest.mark.usefixtures("known")
def test_an_active_scheduler_says_so_in_every_steps_statistics() -> None:
    scheduler = scheduler_class(fakes.Scheduler)(fakes.config(), fakes.caches(fakes.uniform_groups()))
    stats = scheduler.make_stats()
    assert metrics.status_in(stats) == ("exact", "active")
    assert stats.num_kv_fetch_reqs_by_stage["in_progress"] == 0
    assert not any(stats.num_kv_fetch_reqs_by_stage.values())  # vLLM logs a line where any of these counts


def test_one_that_stands_down_says_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "installed", lambda: tuple("0" * 12 for _ in versions.FUNCTIONS))
    scheduler = scheduler_class(fakes.Scheduler)(fakes.config(), fakes.caches(fakes.uniform_groups()))
    assert metrics.status_in(scheduler.make_stats()) == ("exact", "unknown version")


def test_statistics_of_others_say_nothing() -> None:
    others: list[Any] = [None, SimpleNamespace(), SimpleNamespace(num_kv_fetch_reqs_by_stage={"in_progress": 3})]
    for stats in others:
        assert metrics.status_in(stats) is None
    assert metrics.stamp(None, None) is None


def test_the_module_has_one_lazy_name() -> None:
    with pytest.raises(AttributeError):
        metrics.Logger  # noqa: B018
