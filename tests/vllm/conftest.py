"""Where vLLM isn't installed: its version is taken as known, and its scheduler classes are stand-ins."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from statemark.vllm import settings, versions
from tests.vllm import fakes


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed vLLM is one that the cut was made for."""
    monkeypatch.setattr(versions, "installed", lambda: next(iter(versions.KNOWN.values())))


@pytest.fixture
def factory(known: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make_scheduler` finds the stand-ins under vLLM's module names."""
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    plain, other = ModuleType("vllm.v1.core.sched.scheduler"), ModuleType("vllm.v1.core.sched.async_scheduler")
    plain.Scheduler = fakes.Scheduler  # type: ignore[attr-defined]
    other.AsyncScheduler = fakes.AsyncScheduler  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, plain.__name__, plain)
    monkeypatch.setitem(sys.modules, other.__name__, other)
