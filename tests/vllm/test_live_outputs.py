"""On a real vLLM for CPUs: whether a warm answer has the numbers of a cold one, by digests of log-probabilities."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")
from tests.vllm.live.runs import experiments

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(params=["qwen3-next", "qwen3.5"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def cells(model: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = experiments(model, "outputs")["outputs"]["cells"]
    return found


def test_exact_gives_warm_answers_the_numbers_of_cold_ones(model: str) -> None:
    """Ten pairs around boundaries, digests of the top-20 log-probabilities, alone and in company."""
    found = cells(model)
    assert {c["unstable"] for c in found} == {0}  # B cold is bit-stable, so a difference is the cache's doing
    exact = [c for c in found if c["rule"] == "exact"]
    assert {c["company"] for c in exact} == {"alone", "first", "last"}
    assert [c["differ"] for c in exact] == [0] * len(exact)


def test_vllms_own_cut_does_not(model: str) -> None:
    """The same pairs, so that the test above can fail."""
    stock = [c for c in cells(model) if c["rule"] == "vllm-0.32" and c["company"] == "alone"]
    assert all(c["differ"] > 0 for c in stock)
