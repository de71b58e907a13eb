"""`statemark bench` as a person or a script calls it, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from statemark.cli import main
from statemark.models.make_model import make_model

SHORT = ["--prefill", "20", "--decode", "2", "--streams", "1,2", "--repeats", "1", "--threads", "1"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("bench") / "tiny", like="qwen3.5-0.8b", scale="tiny").path


def test_json_is_one_object_on_stdout(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tiny), *SHORT, "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out)
    assert out.count("\n") == 1
    assert [figure["name"] for figure in report["figures"]] == ["prefill 20", "decode, 1 stream", "decode, 2 streams"]
    assert all(figure["median"] > 0 and figure["limit"] > 0 for figure in report["figures"])
    assert report["model"]["dtype"] == "bfloat16"
    assert report["model"]["threads"] == 1


def test_a_named_shape_is_made_for_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--like", "qwen3.5-0.8b", "--scale", "tiny", *SHORT, "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    assert "model    qwen3.5-0.8b, tiny, float32" in out
    assert "of limit" in out


def test_without_a_name_the_bundled_model_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *SHORT]) == 0
    captured = capsys.readouterr()
    assert "model    bundled, bfloat16" in captured.out
    assert "no model is named: this is the small one" in captured.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "--like", "b"], "2 models are named: a, b"),
        (["a", "--prefill", "12,x"], "'x' is not a whole number of at least 1"),
        (["a", "--streams", "0"], "'0' is not a whole number of at least 1"),
        (["a", "--prefill", "", "--streams", ","], "nothing to measure"),
        (["--like", "qwen9"], "unknown shape 'qwen9'"),
        (["no/such/folder"], "no/such/folder"),
    ],
)
def test_mistakes_end_with_words_and_status_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error:")
    assert words in captured.err


def test_a_prompt_longer_than_the_model_allows(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tiny), "--prefill", "9000", "--streams", "", "--repeats", "1"]) == 2
    assert "9001" in capsys.readouterr().err
