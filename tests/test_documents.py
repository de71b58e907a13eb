"""What the documents show is run: Python examples as they stand, and every option of every command they name."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from statemark.cli.frame import cli
from statemark.models.make_model import make_model

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


# An example, and the block of text that follows it as what it prints.
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<printed>.*?)^```)?", re.M | re.S)
EXAMPLES = [
    pytest.param(found["code"], found["printed"], id=f"{document.name}-{number}")
    for document in DOCUMENTS
    for number, found in enumerate(EXAMPLE.finditer(document.read_text()))
]


@pytest.fixture
def folder_with_tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_model(tmp_path / "tiny", like="qwen3.5-0.8b", scale="tiny")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder_with_tiny")
@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_python_examples_run_and_print_what_they_show(
    code: str, printed: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, "example", "exec"), {})
    assert printed is None or capsys.readouterr().out == printed


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every call of `statemark` in a shell block, as words."""
    for document in DOCUMENTS:
        for block in blocks(document, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\||;", line):
                    words = shlex.split(part, comments=True)
                    if words[:1] == ["statemark"]:
                        yield document.name, words


COMMANDS = [pytest.param(words, id=f"{name}: {' '.join(words)}") for name, words in command_lines()]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) > 3


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_and_options_exist(words: list[str]) -> None:
    module = importlib.import_module(f"statemark.cli.{words[1].replace('-', '_')}")
    command = module.command
    assert isinstance(command, click.Command)
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert [word for word in words if word.startswith("-") and word.split("=")[0] not in known] == []


def test_the_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text()
    names = cli.list_commands(click.Context(cli))
    assert [name for name in names if f"statemark {name}" not in text] == []
