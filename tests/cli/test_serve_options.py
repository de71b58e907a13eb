"""Where `serve` takes its settings from: flags, then the environment, then the file, then the defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from statemark.cli import serve
from statemark.cli.frame import run
from statemark.cli.serve_options import ServeOptions
from statemark.errors import ConfigurationError
from statemark.server.state import Settings


def params(*arguments: str) -> dict[str, Any]:
    return serve.command.make_context("serve", list(arguments)).params


def settings(*arguments: str) -> Settings:
    found = params(*arguments)
    return ServeOptions(**{name: found[name] for name in ServeOptions.__dataclass_fields__}).settings()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("STATEMARK_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> str:
    path = folder / "serve.toml"
    path.write_text(text)
    return str(path)


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, 'port = 1\nmax-num-seqs = 1\nmax_waiting = 1\nhost = "10.0.0.1"\nlenient = true\n')
    monkeypatch.setenv("STATEMARK_PORT", "2")
    monkeypatch.setenv("STATEMARK_MAX_NUM_SEQS", "2")
    found = params("--config", file, "--port", "3")
    assert (found["port"], found["max_num_seqs"], found["max_waiting"]) == (3, 2, 1)
    assert (found["host"], found["lenient"], found["shutdown_grace"]) == ("10.0.0.1", True, 10.0)


def test_the_file_is_read_first_wherever_it_stands(tmp_path: Path) -> None:
    file = written(tmp_path, 'cache-memory = "2MiB"\nprefix-caching = false\nmax-body-size = 10\n')
    found = params("--port", "5", "--config", file)
    assert (found["cache_memory"], found["prefix_caching"], found["max_body_size"], found["port"]) == (
        2 * 2**20,
        False,
        10,
        5,
    )


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEMARK_CONFIG", written(tmp_path, "port = 9\n"))
    assert params()["port"] == 9


@pytest.mark.parametrize("flag", [p for p in serve.command.params if p.name != "help"], ids=lambda p: str(p.name))
def test_every_flag_has_its_variable(flag: Any) -> None:
    context = serve.command.make_context("serve", [])
    variable = f"STATEMARK_{flag.name.upper()}"
    if flag.name in ("fault", "unsafe_faults"):  # never by accident
        assert not flag.allow_from_autoenv
    else:
        assert context.auto_envvar_prefix == "STATEMARK"
        assert flag.allow_from_autoenv
        assert flag.envvar in (None, variable)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("prot = 1\n", "there is no setting 'prot'", "did you mean 'port'?"),
        ("zzzzz = 1\n", "there is no setting 'zzzzz'", "--help"),
        ("config = 'x'\n", "there is no setting 'config'", ""),
        ("[serve]\nport = 1\n", "there is no setting 'serve'", ""),
        ("[port]\na = 1\n", "'port' must be a value, not a table", "at the top"),
        ("port = \n", "can't be read as TOML", ""),
        ("port = 8000.9\n", "'port' must be a whole number, got 8000.9", ""),
        ("max-num-seqs = 1.0\n", "'max-num-seqs' must be a whole number", ""),
        ("max_waiting = true\n", "'max_waiting' must be a whole number", ""),
        ("request-timeout = true\n", "'request-timeout' must be a number", ""),
        ("lenient = 1\n", "'lenient' must be true or false", ""),
        ("api-key = 5\n", "'api-key' must be a text in quotes", ""),
    ],
)
def test_a_wrong_file_says_where(tmp_path: Path, text: str, words: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        params("--config", written(tmp_path, text))
    assert words in caught.value.message
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("line", ["port = 70000", "cache-memory = 1.5", 'max-body-size = "0.5"', "cache-disk = true"])
def test_a_wrong_value_in_the_file_is_refused_like_a_wrong_flag(tmp_path: Path, line: str) -> None:
    assert run(["serve", "--config", written(tmp_path, f"{line}\n")]) == 2


def test_a_whole_number_is_a_number_too(tmp_path: Path) -> None:
    assert params("--config", written(tmp_path, "request-timeout = 5\n"))["request_timeout"] == 5.0


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert run(["serve", "--config", str(tmp_path / "absent.toml")]) == 2


def test_origins_are_a_list_with_commas() -> None:
    assert settings("--allowed-origins", "http://a:3000/, https://b").allowed_origins == ("http://a:3000", "https://b")
    assert settings("--allowed-origins", "*").allowed_origins == ("*",)
    assert settings().allowed_origins == ()
    with pytest.raises(ConfigurationError, match="'localhost' is no origin"):
        settings("--allowed-origins", "localhost")


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="API key is empty"):
        settings("--api-key", " ")
