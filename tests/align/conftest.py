"""The marker of the tests that need vLLM itself."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "vllm: needs vLLM 0.32 beside statemark's sources; run it with -m vllm")
