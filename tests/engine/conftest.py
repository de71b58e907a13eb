"""A tiny random-weight model and an LLM on it, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from statemark import LLM
from statemark.models.make_model import make_model


def load(folder: Path, **options) -> LLM:
    return LLM(folder, **{"cache_memory": "64MiB", "num_threads": 1, **options})


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny", like="qwen3.5-0.8b", scale="tiny").path


@pytest.fixture(scope="module")
def loaded_llm(folder) -> LLM:
    return load(folder)


@pytest.fixture
def llm(loaded_llm) -> Iterator[LLM]:
    """Whatever a test does with it, nothing may be left over."""
    yield loaded_llm
    assert not loaded_llm.text_engine.has_work()
    assert len(loaded_llm.text_engine._processor) == 0
    loaded_llm.text_engine.engine.check_integrity()
