"""Quantised models: rounded while loading, or stored packed and mapped; both answer with the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statemark import kernels
from statemark.errors import CheckpointError, ConfigurationError
from statemark.kernels import reference
from statemark.models import load_model
from statemark.models.checkpoint import SINGLE
from statemark.models.quantization import packing_of
from statemark.models.quantize import quantize_model
from statemark.models.safetensors_file import SafetensorsFile
from statemark.models.stored import STORED, StoredWeights
from tests.models.building import Runner, config_of, edit_json, prompt, runtimes, write
from tests.models.distances import mean_kl

KINDS = ("int8", "int4")
CONFIGS = ("interval-4-tied", "interval-2-bias", "custom-layers", "real-head-sizes")
RUNTIME = kernels.Runtime(threads=1)


def runner(folder: Path, **options: Any) -> Runner:
    """A Runner over a model loaded with options of load_model."""
    made = Runner.__new__(Runner)
    made.kernels, made.runtime = kernels, RUNTIME
    made.model = load_model(folder, runtime=RUNTIME, **options)
    made.spec, made.slots, made.hashes = made.model.spec, 8, {}
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_stored_model_is_the_one_that_is_rounded_while_loading(tmp_path: Path, name: str, kind: str) -> None:
    folder = write(tmp_path / "m", name, dtype="bfloat16")
    made = quantize_model(folder, tmp_path / "q", kind)
    at_load, stored = runner(folder, quantization=kind), runner(made.path)
    ids = prompt(config_of(name)["vocab_size"], 40)
    assert np.array_equal(at_load.logits(ids), stored.logits(ids))
    assert at_load.spec == stored.spec  # the fingerprint, too: their states may be shared
    assert (stored.spec.dtype, stored.spec.kv_dtype) == (kind, "bfloat16")
    assert made.weight_bytes == stored.spec.weight_bytes
    assert runner(made.path, quantization=kind).spec == stored.spec


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_compiled_model_is_the_reference_s_but_for_rounding(tmp_path: Path, name: str, kind: str) -> None:
    folder = write(tmp_path / "m", name)
    ids = prompt(config_of(name)["vocab_size"], 30)
    exact = Runner(folder).logits(ids)
    ours = runner(folder, quantization=kind).logits(ids)
    numpy = Runner(folder)
    numpy.model = load_model(folder, runtime=reference.Runtime(), quantization=kind)
    numpy.spec = numpy.model.spec
    theirs = numpy.logits(ids)
    # What quantising does to the answer is the same on both sides; keys and values are bfloat16, so a last-bit
    # difference may be rounded up to 2^-9.
    assert mean_kl(theirs, ours) < 0.02 * mean_kl(exact, theirs)


@pytest.mark.parametrize("name", runtimes())
def test_int8_is_near_float32_and_nearer_than_int4(tmp_path: Path, name: str) -> None:
    if name == "numpy":
        pytest.skip("the reference kernels are compared above")
    folder = write(tmp_path / "m", "real-head-sizes")
    ids = prompt(600, 64)
    exact = Runner(folder).logits(ids)
    eight, four = (mean_kl(exact, runner(folder, quantization=kind).logits(ids)) for kind in KINDS)
    assert 0 < eight < 0.03
    assert 10 * eight < four < 1.0


def test_int4_keeps_the_embedding_and_the_head_in_int8(tmp_path: Path) -> None:
    made = quantize_model(write(tmp_path / "m", "interval-2-bias"), tmp_path / "q", "int4")
    packed = json.loads(SafetensorsFile(made.path / STORED).metadata["matrices"])
    assert {key: dtype for key, (dtype, _, _) in packed.items()} == {k: packing_of(k, "int4") for k in packed}
    assert packed["lm_head.weight"][0] == packed["model.embed_tokens.weight"][0] == "int8"
    assert packed["model.layers.0.mlp.down_proj.weight"][0] == "int4"


def test_the_folder_has_what_else_the_model_needs_and_no_checkpoint(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": SINGLE}}))
    out = quantize_model_of_single(folder, tmp_path / "q")
    kept = {path.name for path in folder.iterdir()} - {SINGLE, "model.safetensors.index.json"}
    assert {path.name for path in out.iterdir()} == kept | {STORED}
    assert json.loads((out / "config.json").read_text())["quantization_config"] == {
        "quant_method": "statemark",
        "quantization": "int8",
    }


def quantize_model_of_single(folder: Path, out: Path) -> Path:
    return quantize_model(folder, out, "int8").path


def test_an_untied_head_under_a_tied_config_is_kept(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "interval-2-bias")
    edit_json(folder / "config.json", tie_word_embeddings=True)
    made = quantize_model(folder, tmp_path / "q", "int8")
    ids = prompt(301, 9)
    assert np.array_equal(runner(folder, quantization="int8").logits(ids), runner(made.path).logits(ids))


def test_what_can_t_be_combined_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    made = quantize_model(folder, tmp_path / "q", "int8")
    with pytest.raises(ConfigurationError, match="one of int8, int4, got 'int3'"):
        runner(folder, quantization="int3")
    for path, options in ((folder, {"quantization": "int4"}), (made.path, {})):
        with pytest.raises(ConfigurationError, match="exclude each other"):
            runner(path, dtype="float32", **options)
    with pytest.raises(ConfigurationError, match="stored in int8, not int4"):
        runner(made.path, quantization="int4")
    with pytest.raises(CheckpointError, match="quantized already"):
        quantize_model(made.path, tmp_path / "again", "int4")
    with pytest.raises(ConfigurationError, match="not an empty folder"):
        quantize_model(folder, made.path, "int8")


def test_another_quantization_config_is_still_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "m")
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq"})
    with pytest.raises(CheckpointError, match="quantization_config"):
        runner(folder)


def test_any_damaged_byte_is_noticed(tmp_path: Path) -> None:
    made = quantize_model(write(tmp_path / "m"), tmp_path / "q", "int4")
    good = (made.path / STORED).read_bytes()
    body = 8 + int.from_bytes(good[:8], "little")
    assert body % 64 == 0
    for at in (body, body + 12345, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        (made.path / STORED).write_bytes(bad)
        with pytest.raises(CheckpointError, match="not what its digest says"):
            runner(made.path)
    (made.path / STORED).write_bytes(good[:-5])
    with pytest.raises(CheckpointError, match="truncated"):
        runner(made.path)


def test_a_file_of_another_layout_or_another_model_is_refused(tmp_path: Path) -> None:
    made = quantize_model(write(tmp_path / "m"), tmp_path / "q", "int8")
    good = (made.path / STORED).read_bytes()
    (made.path / STORED).write_bytes(good.replace(b'"layout":"1"', b'"layout":"9"'))
    with pytest.raises(CheckpointError, match="not of layout 1: statemark-packed 9"):
        StoredWeights(made.path, kernels)  # type: ignore[arg-type]
    shutil.copyfile(SafetensorsFile(write(tmp_path / "plain") / SINGLE).path, made.path / STORED)
    with pytest.raises(CheckpointError, match="not of layout 1: pt"):
        runner(made.path)
    (made.path / STORED).write_bytes(good)
    edit_json(made.path / "config.json", intermediate_size=168)
    with pytest.raises(CheckpointError, match=r"doesn't hold what config.json says: .*mlp"):
        runner(made.path)


def test_progress_goes_through_both_stages(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    quantize_model(write(tmp_path / "m"), tmp_path / "q", "int8", lambda *news: seen.append(news))
    for stage in ("quantizing", "writing"):
        done = [d for s, d, _ in seen if s == stage]
        assert done == sorted(done)
        assert done[-1] == next(t for s, _, t in seen if s == stage)
