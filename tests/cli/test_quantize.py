"""`statemark quantize`: what it writes loads like any model; what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statemark.cli import main
from statemark.models.make_model import make_model


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_model(tmp_path / "tiny", like="qwen3.5-0.8b", scale="tiny", vocab=512).path


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_quantized_folder_answers_as_the_flag_does(
    kind: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "q"
    assert main(["quantize", str(tiny), str(out), "--quantization", kind, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["quantization"] == kind
    assert said["weight_bytes"] < said["source_bytes"] * (0.56 if kind == "int8" else 0.45)
    ask = ["generate", "Once", "-t", "0", "--max-tokens", "8", "--ignore-eos", "--json", "--model"]
    assert main([*ask, str(out)]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert main([*ask, str(tiny), "--quantization", kind]) == 0
    at_load = json.loads(capsys.readouterr().out)
    assert stored["prompts"][0]["choices"] == at_load["prompts"][0]["choices"]


def test_it_says_what_it_made_and_refuses_to_overwrite(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tiny), str(tmp_path / "q")]) == 0
    assert " int8, " in capsys.readouterr().out
    assert main(["quantize", str(tiny), str(tmp_path / "q")]) == 2
    said = capsys.readouterr().err
    assert "error:" in said
    assert "not an empty folder" in said
    assert "hint: name a new folder" in said
