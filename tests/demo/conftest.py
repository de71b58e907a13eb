"""Models for the tour: one with random weights, made for the run, and the bundled one where it is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from statemark import bundled
from statemark.models.make_model import make_model, write_model
from statemark.models.shapes import config_json, named_shape


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("demo") / "tiny", like="qwen3.5-0.8b", scale="tiny").path


@pytest.fixture(scope="session")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a context that the tour's document must be cut for: quicker to go through, too."""
    folder = tmp_path_factory.mktemp("demo") / "middling"
    shape = replace(named_shape("qwen3.5-0.8b", "tiny"), positions=1400)
    write_model(folder, config_json(shape, "bfloat16"), seed=1, dtype="bfloat16")
    return folder


@pytest.fixture(scope="session")
def bundled_folder() -> Path:
    if not (bundled.path() / "model.safetensors").exists():
        pytest.skip("the bundled model's weights are not in this checkout")
    return bundled.path()
