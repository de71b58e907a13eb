"""Servers that tests share: one over the fake model, one over a real one with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from statemark import bundled
from statemark.models.make_model import make_model
from statemark.server.loaded import LoadedModel
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, running
from tests.server.scripted_model import ScriptedModel


@pytest.fixture(scope="session")
def fake() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="session")
def served(fake: FakeModel) -> Iterator[Running]:
    with running(lambda: fake) as found:
        yield found


@pytest.fixture(scope="session")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def script() -> ScriptedModel:
    """Answers as its test sets them."""
    return ScriptedModel()


@pytest.fixture(scope="module")
def server(script: ScriptedModel) -> Iterator[Running]:
    with running(lambda: script) as found:
        yield found


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_model(folder, like="qwen3.5-0.8b", scale="tiny")
    return folder


@pytest.fixture(scope="session")
def real(tiny: Path) -> Iterator[Running]:
    with running(lambda: LoadedModel.load(tiny, num_threads=1, cache_memory="64MiB", max_num_seqs=8)) as found:
        yield found


@pytest.fixture(scope="session")
def trained() -> Iterator[Running]:
    """The bundled model: its vocabulary has the markers of think sections and calls."""
    folder = Path(bundled.__file__).parent
    with running(lambda: LoadedModel.load(folder, num_threads=1, cache_memory="64MiB", max_num_seqs=8)) as found:
        yield found
