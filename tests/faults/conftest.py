"""A tiny model with real kernels, in float32: small enough to be asked hundreds of times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import write_tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("faults") / "tiny")
