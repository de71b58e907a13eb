"""Folders with something wrong, each named; and the kinds of folder that are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from statemark.errors import CheckpointError
from statemark.kernels.reference import Runtime
from statemark.models import Model, load_model
from statemark.models.checkpoint import INDEX, SINGLE, Checkpoint
from tests.models.building import Runner, edit_json, prompt, write

IDS = prompt(300, 9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def load(folder: Path, **options: Any) -> Model:
    return load_model(folder, runtime=Runtime(), **options)


def failure(folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as error:
        load(folder, **options)
    return f"{error.value.message}; {error.value.hint}"


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return {name: value.copy() for name, value in load_file(folder / SINGLE).items()}


def store(folder: Path, tensors: dict[str, np.ndarray], name: str = SINGLE) -> None:
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / name)


def shard(folder: Path, parts: int = 3) -> list[str]:
    """Replace the single file by shards and an index."""
    tensors = tensors_of(folder)
    names = sorted(tensors)
    files = [f"model-{i + 1:05d}-of-{parts:05d}.safetensors" for i in range(parts)]
    weight_map = {}
    for i, file in enumerate(files):
        mine = names[i::parts]
        store(folder, {n: tensors[n] for n in mine}, file)
        weight_map |= dict.fromkeys(mine, file)
    (folder / SINGLE).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return files


def test_missing_tensors_are_counted_and_named(folder: Path) -> None:
    tensors = tensors_of(folder)
    del tensors["model.norm.weight"]
    store(folder, tensors)
    assert "1 tensor missing: model.norm.weight" in failure(folder)
    for n in range(4):
        del tensors[f"model.layers.{n}.mlp.down_proj.weight"]
        del tensors[f"model.layers.{n}.mlp.up_proj.weight"]
    store(folder, tensors)
    message = failure(folder)
    assert "9 tensors missing: model.layers.0.mlp.down_proj.weight" in message
    assert "and 4 more" in message


def test_missing_head_says_what_may_be_meant(folder: Path) -> None:
    edit_json(folder / "config.json", tie_word_embeddings=False)
    message = failure(folder)
    assert "1 tensor missing: lm_head.weight" in message
    assert "tie_word_embeddings" in message


def test_extra_tensors_are_named(folder: Path) -> None:
    tensors = tensors_of(folder)
    tensors["model.layers.0.mlp.gate_proj.lora_A"] = np.zeros((2, 2), np.float32)
    store(folder, tensors)
    assert "1 tensor not part of this architecture: model.layers.0.mlp.gate_proj.lora_A" in failure(folder)


def test_biases_without_attention_bias_are_extra(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "interval-2-bias")
    edit_json(folder / "config.json", attention_bias=False)
    assert "self_attn.k_proj.bias" in failure(folder)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.embed_tokens.weight", (499, 64), "[499, 64], expected [500, 64]"),
        ("model.layers.3.self_attn.q_proj.weight", (128, 64), "[128, 64], expected [256, 64]"),
        ("model.layers.0.linear_attn.conv1d.weight", (256, 4), "[256, 4], expected [256, 1, 4]"),
        ("model.norm.weight", (64, 1), "[64, 1], expected [64]"),
    ],
)
def test_shape_mismatch_tells_found_and_expected(
    folder: Path, name: str, shape: tuple[int, ...], expected: str
) -> None:
    tensors = tensors_of(folder)
    tensors[name] = np.zeros(shape, np.float32)
    store(folder, tensors)
    message = failure(folder)
    assert name in message
    assert expected in message


def test_types_that_cannot_be_packed_are_named(folder: Path) -> None:
    tensors = tensors_of(folder)
    tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].astype(np.int8)
    store(folder, tensors)
    message = failure(folder)
    assert "model.layers.1.mlp.up_proj.weight is stored as I8" in message
    assert "F32, F16, BF16" in message


def test_truncated_file(folder: Path) -> None:
    size = (folder / SINGLE).stat().st_size
    with (folder / SINGLE).open("r+b") as file:
        file.truncate(size - 1000)
    message = failure(folder)
    assert f"{SINGLE} is truncated: its tensors need {size} bytes, it has {size - 1000}" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_that_are_not_finite_are_counted_by_tensor(folder: Path, value: float, dtype: str) -> None:
    tensors = tensors_of(folder)
    tensors["model.layers.2.mlp.gate_proj.weight"][5, 3:6] = value
    tensors["model.layers.0.linear_attn.A_log"][1] = value
    store(folder, tensors)
    message = failure(folder, dtype=dtype)
    assert "model.layers.0.linear_attn.A_log (1), model.layers.2.mlp.gate_proj.weight (3)" in message


def test_absent_shards_are_named(folder: Path) -> None:
    files = shard(folder)
    (folder / files[1]).unlink()
    assert f"1 shard of 3 named in {INDEX} but absent: {files[1]}" in failure(folder)


def test_index_without_map(folder: Path) -> None:
    (folder / INDEX).write_text("{}")
    assert "no weight_map" in failure(folder)


def test_a_tensor_in_two_shards(folder: Path) -> None:
    files = shard(folder)
    tensors = dict(load_file(folder / files[0]))
    twin = next(iter(load_file(folder / files[1])))
    tensors[twin] = np.zeros(1, np.float32)
    store(folder, tensors, files[0])
    assert f"tensor {twin} is stored twice" in failure(folder)


def test_no_weights_says_what_was_found(folder: Path) -> None:
    (folder / SINGLE).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    message = failure(folder)
    assert f"no {SINGLE} or {INDEX}" in message
    assert "found pytorch_model.bin" in message


def test_no_folder_and_no_config(tmp_path: Path, folder: Path) -> None:
    assert f"no model folder at {tmp_path / 'nowhere'}" in failure(tmp_path / "nowhere")
    (folder / "config.json").unlink()
    assert "no config.json" in failure(folder)
    assert "is a file" in failure(folder / SINGLE)


def test_sharded_and_single_are_the_same_model(tmp_path: Path, folder: Path) -> None:
    other = write(tmp_path / "other")
    shard(other)
    one, two = Runner(folder), Runner(other)
    assert one.spec.fingerprint == two.spec.fingerprint
    np.testing.assert_array_equal(one.logits(IDS), two.logits(IDS))


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_multimodal_names_and_skipped_parts(tmp_path: Path, folder: Path, prefix: str) -> None:
    other = write(tmp_path / "other")
    tensors = {n.replace("model.", prefix, 1): v for n, v in tensors_of(other).items()}
    for i in range(3):
        tensors[f"model.visual.blocks.{i}.norm.weight"] = np.ones(4, np.float32)
    tensors["mtp.fc.weight"] = np.ones((4, 4), np.float32)
    store(other, tensors)
    one, two = Runner(folder), Runner(other)
    assert two.spec.notices == ["skipped 3 vision weights: text only", "skipped 1 mtp (draft head) weights: text only"]
    assert one.spec.notices == []
    assert one.spec.fingerprint == two.spec.fingerprint
    np.testing.assert_array_equal(one.logits(IDS), two.logits(IDS))


def test_tied_with_an_equal_head_stored_too(tmp_path: Path, folder: Path) -> None:
    other = write(tmp_path / "other")
    tensors = tensors_of(other)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    store(other, tensors)
    one, two = Runner(folder), Runner(other)
    assert (two.spec.fingerprint, two.spec.notices) == (one.spec.fingerprint, [])
    np.testing.assert_array_equal(one.logits(IDS), two.logits(IDS))


def test_tied_with_only_the_head_stored(tmp_path: Path, folder: Path) -> None:
    other = write(tmp_path / "other")
    tensors = tensors_of(other)
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    store(other, tensors)
    np.testing.assert_array_equal(Runner(folder).logits(IDS), Runner(other).logits(IDS))


def test_tied_with_another_head_uses_both_and_says_so(tmp_path: Path, folder: Path) -> None:
    other = write(tmp_path / "other")
    tensors = tensors_of(other)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    store(other, tensors)
    one, two = Runner(folder), Runner(other)
    assert "lm_head differs from the embedding" in two.spec.notices[0]
    np.testing.assert_allclose(two.logits(IDS), 2 * one.logits(IDS), rtol=1e-6)


def test_mixed_types_in_one_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", dtype="float16")
    kinds = {Checkpoint(folder).dtype(name) for name in Checkpoint(folder).names}
    assert kinds == {"F16", "F32"}
    widened = write(tmp_path / "wide", dtype="float16")
    store(widened, {n: v.astype(np.float32) for n, v in tensors_of(widened).items()})
    np.testing.assert_array_equal(Runner(folder).logits(IDS), Runner(widened).logits(IDS))
