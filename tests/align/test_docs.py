"""docs/align.md: its commands run as printed, and its pictures are what they draw."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from statemark.cli import main

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "align.md").read_text(encoding="utf-8")


def pictures() -> list[tuple[str, str]]:
    """(picture, the command printed before it)."""
    found = []
    commands = re.findall(r"((?:^    .*\n)+)\n(?:!\[[^\]]*\]\((align/[a-z-]+\.svg)\))", TEXT, re.MULTILINE)
    for command, picture in commands:
        found.append((picture, " ".join(line.strip().removesuffix("\\") for line in command.splitlines())))
    return found


def test_every_picture_has_its_command() -> None:
    assert len(pictures()) == TEXT.count(".svg)") >= 6


@pytest.mark.parametrize(("picture", "command"), pictures(), ids=[p for p, _ in pictures()])
def test_a_picture_is_what_its_command_draws(
    picture: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    assert words[:2] == ["statemark", "plan"]
    drawn = tmp_path / "drawn.svg"
    assert main([*words[1:], "--svg", str(drawn)]) == 0, capsys.readouterr().err
    assert drawn.read_bytes() == (ROOT / "docs" / picture).read_bytes(), f"{command} --svg docs/{picture}"
