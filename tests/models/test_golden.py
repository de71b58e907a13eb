"""Our logits against stored ones of transformers: the check of numbers that needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.building import Runner, prompt, runtimes, write
from tests.models.distances import Distance, mean_kl
from tests.models.golden_values import CONFIGS, LENGTH, POSITIONS, SEED, golden


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("golden") / "m", request.param, seed=SEED, dtype="bfloat16")


@pytest.mark.parametrize("runtime", runtimes())
@pytest.mark.parametrize(("folder", "name"), [(n, n) for n in CONFIGS], indirect=["folder"])
def test_stored_logits(folder: Path, name: str, runtime: str) -> None:
    logits, rounded_kl = golden(name)
    exact = Runner(folder, runtime)
    ids = prompt(exact.spec.vocab_size, LENGTH)
    distance = Distance.between(logits, exact.logits(ids)[POSITIONS])
    assert distance.is_rounding, distance
    ours = mean_kl(logits, Runner(folder, runtime, "bfloat16").logits(ids)[POSITIONS])
    assert 0 <= ours <= rounded_kl, f"KL {ours:.2e}, transformers {rounded_kl:.2e}"
