"""The command frame: what a newcomer reads, and how every mistake ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from statemark import __version__
from statemark.cli import frame, main, talk
from statemark.errors import CheckpointError, IntegrityError

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes `statemark generate` raise something."""

    def plant(error: BaseException) -> None:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(frame.LazyGroup, "get_command", lambda self, ctx, name: command)

    return plant


def test_version_and_help_go_to_stdout(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"statemark {__version__}\n"
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert main([]) == 0
    assert capsys.readouterr().out == text
    for name in ("generate", "chat", "serve"):
        assert f"  {name} " in text
    assert "First steps" in text


def test_help_of_every_command_says_what_it_does(capsys: Capture) -> None:
    for name in frame.LazyGroup().list_commands(click.Context(frame.cli)):
        assert main([name, "--help"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"Usage: statemark {name} ")
        assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("genrate", "there is no command 'genrate'", "did you mean 'generate'?"),
        ("zzz", "there is no command 'zzz'", "there are generate"),
        ("--nothing", "no such option '--nothing'", "`statemark --help` lists what it takes"),
        ("--versio", "no such option --versio", "did you mean --version?"),
        ("generate --dtype int3 x", "'int3' is not one of", "`statemark generate --help` lists what it takes"),
        ("generate --threads -1 x", "-1", "`statemark generate --help` lists what it takes"),
        ("generate --cache-memory lots x", "'lots' is not a size", "`statemark generate --help` lists what it takes"),
    ],
)
def test_usage_errors(capsys: Capture, line: str, message: str, hint: str) -> None:
    assert main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    first, blank, last = err.rstrip("\n").split("\n")
    assert first.startswith("error: ")
    assert message in first
    assert (blank, last[: len("hint: ")]) == ("", "hint: ")
    assert hint in last


def test_a_user_error_is_two_lines_and_code_2(planted: Callable[[BaseException], None], capsys: Capture) -> None:
    planted(CheckpointError("no weights in x", hint="look in y"))
    assert main(["generate"]) == 2
    assert capsys.readouterr() == ("", "error: no weights in x\n\nhint: look in y\n")
    planted(CheckpointError("no weights in x"))
    assert main(["generate"]) == 2
    assert capsys.readouterr() == ("", "error: no weights in x\n")


def test_an_interrupt_is_code_130_without_a_traceback(
    planted: Callable[[BaseException], None], capsys: Capture
) -> None:
    planted(KeyboardInterrupt())
    assert main(["generate"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_our_own_faults_are_not_dressed_up(planted: Callable[[BaseException], None]) -> None:
    planted(IntegrityError("a contract was broken"))
    with pytest.raises(IntegrityError):
        main(["generate"])


def test_help_and_version_import_nothing_heavy() -> None:
    script = (
        "import sys; from statemark.cli import main; main(['--help']); main(['--version']);"
        "names = {'numpy', 'tokenizers', 'jinja2', 'starlette', 'uvicorn', 'rich', 'statemark.models'};"
        "heavy = names & set(sys.modules);"
        "print(heavy, file=sys.stderr); sys.exit(bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_flags_of_the_engine_are_told_without_the_engine() -> None:
    script = (
        "import sys; import statemark.cli.options;"
        "heavy = {'numpy', 'statemark.engine', 'statemark.cache'} & set(sys.modules);"
        "print(heavy, file=sys.stderr); sys.exit(bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_commands_without_a_server_import_no_http() -> None:
    script = (
        "import sys; import statemark.cli.generate, statemark.cli.chat;"
        "sys.exit(bool({'starlette', 'uvicorn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_exit_codes_of_the_process() -> None:
    script = "import sys; from statemark.cli import main; sys.exit(main())"
    codes = [
        subprocess.run([sys.executable, "-c", script, *args], capture_output=True, check=False).returncode
        for args in (["--version"], ["nope"], ["generate", "--nope"])
    ]
    assert codes == [0, 2, 2]


def test_colour_is_for_terminals_only_and_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(click, "echo", lambda text, err, color: seen.append((text, err, color)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    talk.say("a")
    monkeypatch.setenv("NO_COLOR", "1")
    talk.say("b")
    assert seen == [("a", True, None), ("b", True, False)]
