"""Which type is packed, what identifies a model, what is refused before any weight is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from statemark.errors import CheckpointError, ConfigurationError
from statemark.kernels import reference
from statemark.kernels.reference import Runtime
from statemark.models import ModelSpec, load_model
from statemark.models.checkpoint import SINGLE
from statemark.models.layers import rope_frequencies
from tests.models.building import CONFIGS, Runner, config_of, edit_json, prompt, write


def spec_of(folder: Path, **options: Any) -> ModelSpec:
    return load_model(folder, runtime=options.pop("runtime", Runtime()), **options).spec


@pytest.mark.parametrize(
    ("stored", "wanted", "packed", "notices"),
    [
        ("bfloat16", "auto", "bfloat16", 0),
        ("float32", "auto", "float32", 0),
        ("float16", "auto", "bfloat16", 1),
        ("float16", "float32", "float32", 0),
        ("float32", "bfloat16", "bfloat16", 0),
        ("bfloat16", "float32", "float32", 0),
    ],
)
def test_dtype(tmp_path: Path, stored: str, wanted: str, packed: str, notices: int) -> None:
    spec = spec_of(write(tmp_path / "m", dtype=stored), dtype=wanted)
    assert (spec.dtype, spec.kv_dtype, len(spec.notices)) == (packed, packed, notices)
    if notices:
        assert "float32 keeps all bits" in spec.notices[0]


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_float32_keeps_every_bit_of_narrower_weights(tmp_path: Path, stored: str) -> None:
    narrow = write(tmp_path / "narrow", "interval-2-bias", dtype=stored)
    wide = Runner(narrow).logits(prompt(301, 5))
    rounded = Runner(narrow, dtype="bfloat16").logits(prompt(301, 5))
    assert np.isfinite(wide).all()
    assert not np.array_equal(wide, rounded)  # bfloat16 keys and values at least


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes(tmp_path: Path, name: str) -> None:
    spec = spec_of(write(tmp_path / "m", name), dtype="bfloat16")
    raw = {**{"head_dim": 256, "num_key_value_heads": 4}, **config_of(name)}
    assert spec.num_attention_layers + spec.num_recurrent_layers == raw["num_hidden_layers"]
    assert spec.page_elems == spec.num_attention_layers * 2 * 16 * raw["num_key_value_heads"] * raw["head_dim"]
    assert spec.page_bytes == 2 * spec.page_elems
    assert spec.slot_bytes == 4 * spec.slot_floats
    if spec.num_recurrent_layers:
        keys = raw["linear_num_key_heads"] * raw["linear_key_head_dim"]
        values = raw["linear_num_value_heads"] * raw["linear_value_head_dim"]
        state = values * raw["linear_key_head_dim"] + (raw["linear_conv_kernel_dim"] - 1) * (2 * keys + values)
        state += 7 * (keys + values + raw["linear_num_value_heads"])  # tokens that wait: keys, deltas, decays
        assert 0 <= spec.slot_floats // spec.num_recurrent_layers - state < 16
    else:
        assert spec.slot_floats == 0
    assert spec.vocab_size == raw["vocab_size"]


def test_unknown_dtype_and_lengths_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    with pytest.raises(ConfigurationError, match="'int4'"):
        spec_of(folder, dtype="int4")
    for length in (0, -1, 4097):
        with pytest.raises(ConfigurationError, match=rf"4096 positions, got {length}"):
            spec_of(folder, max_model_len=length)
    assert spec_of(folder, max_model_len=17).max_model_len == 17
    assert spec_of(folder).max_model_len == 4096


def test_progress_ends_at_the_total_and_never_goes_back(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    spec_of(write(tmp_path / "m"), progress=lambda *news: seen.append(news))
    assert {stage for stage, _, _ in seen} == {"weights"}
    assert len({total for _, _, total in seen}) == 1
    done = [d for _, d, _ in seen]
    assert done == sorted(done)
    assert done[-1] == seen[-1][2]


def test_fingerprint_is_stable_and_sees_everything_that_changes_states(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    first = spec_of(folder).fingerprint
    assert spec_of(folder).fingerprint == first
    assert spec_of(folder, max_model_len=100).fingerprint == first
    others = {
        "dtype": spec_of(folder, dtype="bfloat16").fingerprint,
        "isa": spec_of(folder, runtime=Runtime(isa="other")).fingerprint,
        "seed": spec_of(write(tmp_path / "seed", seed=2)).fingerprint,
        "eps": spec_of(write(tmp_path / "eps", rms_norm_eps=2e-6)).fingerprint,
        "theta": spec_of(write(tmp_path / "theta", rope_parameters={"rope_theta": 9.0})).fingerprint,
    }
    assert len({first, *others.values()}) == 1 + len(others)


@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.layers.1.linear_attn.dt_bias", "model.layers.3.mlp.down_proj.weight"]
)
def test_fingerprint_sees_the_last_bit_of_one_weight(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "m")
    before = spec_of(folder).fingerprint
    tensors = {n: v.copy() for n, v in load_file(folder / SINGLE).items()}
    tensors[name].reshape(-1)[-1] = np.nextafter(tensors[name].reshape(-1)[-1], np.float32(9))
    save_file(tensors, folder / SINGLE)
    assert spec_of(folder).fingerprint != before


def test_fingerprint_ignores_what_changes_no_state(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    before = spec_of(folder).fingerprint
    edit_json(folder / "config.json", eos_token_id=5, max_position_embeddings=100, use_cache=False, strange=1)
    assert spec_of(folder).fingerprint == before


def test_end_ids_come_from_the_config_or_else_from_the_generation_config(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    assert spec_of(folder).eos_token_ids == (499, 497)
    edit_json(folder / "config.json", eos_token_id=[3])
    assert spec_of(folder).eos_token_ids == (3,)


def test_a_kernel_that_refuses_dimensions_is_a_checkpoint_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise ValueError("key_dim 32 is too odd")

    monkeypatch.setattr(reference, "GatedDeltaNet", refuse)
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.linear_attn.*key_dim 32 is too odd"):
        spec_of(write(tmp_path / "m"))


def test_lack_of_memory_is_said_with_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(reference.Matrix):
        def __init__(self, **_: Any) -> None:
            raise MemoryError

    monkeypatch.setattr(reference, "Matrix", Huge)
    with pytest.raises(CheckpointError, match=r"not enough memory for the weights: 0\.\d GB"):
        spec_of(write(tmp_path / "m"))


@pytest.mark.parametrize(("dim", "theta"), [(2, 10.0), (8, 1e7), (64, 1e7), (12, 3e5), (64, 10000.0)])
def test_rope_frequencies_are_within_float32_rounding(dim: int, theta: float) -> None:
    exact = theta ** (-np.arange(0, dim, 2) / dim)
    np.testing.assert_allclose(rope_frequencies(dim, theta), exact, rtol=1e-6)
    assert rope_frequencies(dim, theta).dtype == np.float32
