"""`statemark check` and `statemark plan` as commands: pasted flags, JSON, exit codes, pictures, errors."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from statemark.cli import main

Q3N = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "max_position_embeddings": 262_144,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(Q3N))
    return str(tmp_path)


def test_a_pasted_command_is_checked(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    pasted = ["vllm", "serve", model, "-tp", "4", "-dph", "--port", "80", "--max_num_batched_tokens=2048"]
    assert main(["check", *pasted]) == 0
    out = capsys.readouterr().out
    assert "272 tokens: state grid, cut, hash and hits agree" in out
    assert "2,048 (as given)" in out


def test_json_is_one_object_and_equal_input_gives_equal_bytes(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for _ in range(2):
        assert main(["check", model, "--json", "--gpu", "h100", "--prefix-match-unit", "16"]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]
    data: dict[str, Any] = json.loads(seen[0])
    assert data["units"]["hash_unit"] == 16
    assert {f["code"] for f in data["findings"]} >= {"match-unit-off-kernel"}


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 1), ("info", 1), ("never", 0)])
def test_exit_codes_for_ci(model: str, fail_on: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--block-size", "1152", "--max-num-batched-tokens", "2048", "--max-num-seqs", "64"]
    assert main(["check", model, *flags, "--fail-on", fail_on]) == code
    assert "idle-budget" in capsys.readouterr().out


def test_an_error_finding_fails_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(Q3N | {"max_position_embeddings": 512}))
    assert main(["check", str(tmp_path)]) == 1
    assert "error: cache-inert" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check"], "no model is named"),
        (["check", "{model}", "--max-num-batched-token", "1"], "no flag --max-num-batched-token"),
        (["check", "{model}", "--gpu", "abacus"], "unknown GPU 'abacus'"),
        (["check", "{model}", "--prefix-match-unit", "100"], "doesn't divide the blocks 544"),
        (["plan", "{model}"], "no prompt is given"),
        (["plan", "{model}", "--prompt", "300000"], "doesn't fit max_model_len 262144"),
        (["plan", "{model}", "--prompt", "100", "--no-enable-prefix-caching"], "the prefix cache is off"),
        (["plan", "{model}", "--prompt", "100", "--rule", "slow"], "slow"),
    ],
)
def test_mistakes_end_as_two_lines_and_exit_code_2(
    model: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([a.replace("{model}", model) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err


def test_a_hub_id_is_fetched(model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def download(name: str, file: str) -> str:
        asked.append((name, file))
        if file != "config.json":
            raise OSError("no such file")
        return f"{model}/{file}"

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=download))
    assert main(["check", "Qwen/Qwen3-Next"]) == 0
    assert capsys.readouterr().out.startswith("Qwen/Qwen3-Next: Qwen3-Next, 12 attention and 36 recurrent layers")
    assert asked == [("Qwen/Qwen3-Next", "config.json"), ("Qwen/Qwen3-Next", "model.safetensors.index.json")]


@pytest.mark.parametrize(("installed", "message"), [(True, "can't read config.json"), (False, "needs huggingface-hub")])
def test_a_hub_id_that_cannot_be_had_is_an_error_not_a_traceback(
    installed: bool, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline(name: str, file: str) -> str:
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=offline) if installed else None)
    assert main(["check", "nobody/nothing-at-all"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "nobody/nothing-at-all" in err


def test_plan_prints_a_picture_a_table_and_lists(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.svg"
    words = ["--prompt", "5000", "--prompt", "5500", "--max-num-batched-tokens", "2048", "--svg", str(file)]
    assert main(["plan", model, *words]) == 0
    out = capsys.readouterr().out
    assert "Qwen3-Next: state grid 544, 2,048 tokens a step" in out
    assert "vllm-0.32, prompt 1: chunks end at 1,632, 3,264, 4,896, 5,000" in out
    assert "fast, prompt 1: chunks end at 2,048, 4,096, 4,896, 5,000" in out
    assert ET.parse(file).getroot().tag.endswith("svg")


def test_plan_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "--prompt",
        "4000",
        "--prompt",
        "4000",
        "--prompt",
        "4000",
        "--shared",
        "3000",
        "--rule",
        "exact",
        "--json",
    ]
    assert main(["plan", model, *words]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [r["rule"] for r in data["rules"]] == ["exact"]
    assert [p["hit"] for p in data["rules"][0]["prompts"]] == [0, 0, 2720]
