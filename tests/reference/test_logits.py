"""Our logits against transformers' uncached full forward, on folders that its save_pretrained wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from statemark.models.layers import rope_frequencies
from tests.models.building import CONFIGS, Runner, prompt, runtimes
from tests.models.distances import Distance, mean_kl
from tests.reference import hf

pytestmark = pytest.mark.reference

LENGTHS = (1, 2, 63, 64, 65, 500, 2000)
# The NumPy kernels take milliseconds a token; their longer prompts add nothing that chunk tests don't have.
NUMPY_LENGTHS = (1, 2, 63, 64, 65)


def lengths(runtime: str) -> tuple[int, ...]:
    return NUMPY_LENGTHS if runtime == "numpy" else LENGTHS


@pytest.fixture(scope="module", params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored in bfloat16, so that both precisions start from the same weights."""
    return hf.save_text_model(tmp_path_factory.mktemp("text") / name, name, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def truth(name: str, folder: Path) -> dict[int, np.ndarray]:
    """transformers in float32, every length computed once."""
    model = hf.load(folder, torch.float32)
    return {n: hf.logits(model, prompt(model.config.vocab_size, n)) for n in LENGTHS}


@pytest.fixture(scope="module")
def rounded_kl(folder: Path, truth: dict[int, np.ndarray]) -> dict[int, float]:
    """What transformers' own bfloat16 forward loses."""
    model = hf.load(folder, torch.bfloat16)
    return {n: mean_kl(truth[n], hf.logits(model, prompt(model.config.vocab_size, n))) for n in LENGTHS}


@pytest.mark.parametrize("runtime", runtimes(every=True))
def test_float32_agrees_to_rounding(folder: Path, truth: dict[int, np.ndarray], runtime: str) -> None:
    runner = Runner(folder, runtime, "float32")
    assert runner.spec.notices == []  # whatever save_pretrained puts into config.json is known here
    for n in lengths(runtime):
        distance = Distance.between(truth[n], runner.logits(prompt(runner.spec.vocab_size, n)))
        assert distance.is_rounding, f"{n} tokens: {distance}"


@pytest.mark.parametrize("runtime", runtimes(every=True))
def test_bfloat16_loses_no_more_than_transformers_does(
    folder: Path, truth: dict[int, np.ndarray], rounded_kl: dict[int, float], runtime: str
) -> None:
    runner = Runner(folder, runtime, "bfloat16")
    for n in lengths(runtime):
        ours = mean_kl(truth[n], runner.logits(prompt(runner.spec.vocab_size, n)))
        # One or two positions are one draw of two roundings: there a bad draw of ours may meet a good one of theirs.
        allowed = rounded_kl[n] * (4 if n < 3 else 1)
        assert 0 <= ours <= allowed, f"{n} tokens: KL {ours:.2e}, transformers {rounded_kl[n]:.2e}"
        assert rounded_kl[n] < 0.5  # else the comparison would prove nothing


def test_the_truth_is_not_degenerate(truth: dict[int, np.ndarray]) -> None:
    logits = truth[500]
    assert np.isfinite(logits).all()
    assert 1.0 < logits.std() < 8.0
    assert len(set(logits.argmax(axis=1).tolist())) > 50


def test_a_small_mistake_would_be_seen(folder: Path, truth: dict[int, np.ndarray]) -> None:
    """Off by one position in the rotation, or by one token in the prefix, is far from rounding."""
    runner = Runner(folder)
    ids = prompt(runner.spec.vocab_size, 65)
    changed = [(ids[0] + 1) % runner.spec.vocab_size, *ids[1:]]
    assert not Distance.between(truth[65], runner.logits(changed)).is_rounding
    if runner.spec.num_attention_layers:
        runner.model._inv_freq = runner.model._inv_freq * np.float32(1.01)
        assert not Distance.between(truth[65], runner.logits(ids)).is_rounding


@pytest.mark.parametrize(("dim", "theta"), [(64, 1e7), (8, 1e7), (8, 1e4), (64, 5e5), (18, 2e6), (12, 3e5)])
def test_rope_frequencies_are_within_one_unit_in_the_last_place(dim: int, theta: float) -> None:
    theirs = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))
    np.testing.assert_array_max_ulp(rope_frequencies(dim, theta), theirs.numpy(), maxulp=1)


@pytest.mark.parametrize("stored", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", ["interval-2-bias", "custom-layers"])
def test_multimodal_checkpoints(tmp_path: Path, name: str, stored: str) -> None:
    """One untied, one tied; vision and mtp weights are skipped and said."""
    folder = hf.save_multimodal_model(tmp_path / "m", name, dtype=getattr(torch, stored))
    runner = Runner(folder, runtimes()[-1])
    assert runner.spec.architecture == "Qwen3_5ForConditionalGeneration"
    assert any("vision weights: text only" in notice for notice in runner.spec.notices)
    assert "skipped 2 mtp (draft head) weights: text only" in runner.spec.notices
    ids = prompt(runner.spec.vocab_size, 65)
    theirs = hf.logits(hf.load(folder, torch.float32, "AutoModelForImageTextToText"), ids)
    assert Distance.between(theirs, runner.logits(ids)).is_rounding


def test_sharded_by_transformers(tmp_path: Path) -> None:
    folder = hf.save_text_model(tmp_path / "m", "custom-layers", dtype=torch.float32, shards="300KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 2
    runner = Runner(folder, runtimes()[-1])
    ids = prompt(runner.spec.vocab_size, 33)
    assert Distance.between(hf.logits(hf.load(folder, torch.float32), ids), runner.logits(ids)).is_rounding
