"""The common flags: sizes, what was given and what was not, and the error without a model."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from statemark.cli.frame import run
from statemark.cli.options import EngineOptions, SizeType, engine_options, sampling_options


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1024b", 1024),
        ("2K", 2048),
        ("2 kib", 2048),
        ("512M", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("2gb", 2 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert SizeType().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1 GiB of it", "1e9", "GiB", "1X"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a size"):
        SizeType().convert(text, None, None)


def called(*arguments: str, env: dict[str, str] | None = None) -> tuple[EngineOptions, dict[str, Any]]:
    found: list[Any] = []

    @click.command()
    @engine_options
    @sampling_options
    def command(options: EngineOptions, sampling: dict[str, Any]) -> None:
        found.extend((options, sampling))

    result = CliRunner(env=env).invoke(command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0], found[1]


def test_only_what_was_given_is_passed_on() -> None:
    options, sampling = called()
    assert options.engine_arguments() == {"dtype": "auto", "num_threads": 0, "enable_prefix_caching": True}
    assert sampling == {}


def test_every_flag_arrives() -> None:
    line = """
        --model m --dtype float32 --quantization int8 --threads 2 --cache-memory 1K --cache-dir d
        --cache-disk 1M
        --max-model-len 9 --max-num-seqs 3
        --max-num-batched-tokens 7 --no-prefix-caching --isa avx2 --max-tokens 4 -t 0 --top-p 0.5 --top-k 3
        --min-p 0.1 --repetition-penalty 1.5 --presence-penalty 1 --frequency-penalty -1 --seed 7
        --stop a --stop b --min-tokens 2 --ignore-eos
    """
    options, sampling = called(*line.split())
    assert options.model == "m"
    assert options.engine_arguments() == {
        "dtype": "float32",
        "quantization": "int8",
        "num_threads": 2,
        "cache_memory": 1024,
        "cache_dir": "d",
        "cache_disk": 1 << 20,
        "max_model_len": 9,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 7,
        "enable_prefix_caching": False,
        "isa": "avx2",
    }
    assert sampling == {
        "max_tokens": 4,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": 7,
        "stop": ("a", "b"),
        "min_tokens": 2,
        "ignore_eos": True,
    }


def test_the_model_may_come_from_the_environment() -> None:
    assert called(env={"STATEMARK_MODEL": "there"})[0].model == "there"
    assert called("--model", "here", env={"STATEMARK_MODEL": "there"})[0].model == "here"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--port", "99999"], "99999 is out of range: it must be from 0 to 65535"),
        (["serve", "--port", "x"], "'x' is no whole number"),
        (["serve", "--request-timeout", "0"], "it must be above 0"),
        (["serve", "--request-timeout", "x"], "'x' is no number"),
        (["probe", "http://x", "--limit", "12"], "it must be at least 256"),
    ],
)
def test_numbers_that_an_option_does_not_take_are_told_in_plain_words(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert told in capsys.readouterr().err


def test_record_looks_at_its_target_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # taken, and nobody listens
        target = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert run(["record", "--target", target, "--out", str(tmp_path / "trace.jsonl"), "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert "nobody answers at" in told
    assert "is the server running there?" in told
