"""A served model with scripted answers, for clients from registries: they must work by changing a base URL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.live_server import Running, running
from tests.server.scripted_model import ScriptedModel

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def script() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture(scope="module")
def server(script: ScriptedModel) -> Iterator[Running]:
    with running(lambda: script) as found:
        yield found


@pytest.fixture(autouse=True)
def all_was_said(script: ScriptedModel) -> Iterator[None]:
    """Clients ask as often as the script says, and leave nothing running."""
    script.letters = 3
    yield
    left, script.scripts = script.scripts, []
    assert left == []
