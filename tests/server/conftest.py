"""One server over the fake model for the tests that don't break it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, running


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
