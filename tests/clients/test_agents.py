"""Coding agents from npm, which send what no SDK does: long tool lists, reminders as system messages, namespaces.

Each is asked about a file, is told by the script to read it with its own tool, and says the script's last words. Their
versions are fixed in package.json: a new one may ask in a new way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.fake_model import VOCAB
from tests.server.live_server import Running
from tests.server.scripted_model import ScriptedModel

FOLDER = os.environ.get("STATEMARK_NPM")
if FOLDER is None or shutil.which("node") is None:
    pytest.skip("could not import 'npm': STATEMARK_NPM names no folder, or there is no node", allow_module_level=True)

QUESTION = "What does a.py print?"


class Roomy(ScriptedModel):
    """For prompts of an agent: long, and with signs that the fake model's vocabulary lacks."""

    max_model_len = 200_000

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [min(ord(sign), VOCAB - 1) for sign in text]


@pytest.fixture(scope="module")
def script() -> ScriptedModel:
    return Roomy()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where an agent works. Its home is beside it, so that nobody's settings have a say."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text('print("hello")\n')
    return work


def run(command: str, *arguments: str, folder: Path, **settings: str) -> str:
    assert FOLDER is not None
    program = Path(FOLDER) / "node_modules" / ".bin" / command
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), **settings}
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def result(script: ScriptedModel) -> str:
    """What the agent's tool gave, as the template got it with the last request."""
    (found,) = [message["content"] for message in script.rendered[0] if message["role"] == "tool"]
    return found


def test_claude_code(server: Running, script: ScriptedModel, folder: Path) -> None:
    script.scripts = [
        f"<think>I look.</think>Let me see.{call('Read', file_path=str(folder / 'a.py'))}",
        "It prints hello.",
    ]
    answer = json.loads(
        run(
            "claude",
            *("-p", QUESTION, "--output-format", "json"),
            folder=folder,
            ANTHROPIC_BASE_URL=server.url,
            ANTHROPIC_AUTH_TOKEN="none",
            ANTHROPIC_MODEL="scripted",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )
    )
    assert (answer["is_error"], answer["num_turns"], answer["result"]) == (False, 2, "It prints hello.")
    assert 'print("hello")' in result(script)


def test_codex(server: Running, script: ScriptedModel, folder: Path) -> None:
    home = folder.parent / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(
        f"""\
model = "scripted"
model_provider = "local"
web_search = "disabled"
[model_providers.local]
name = "local"
base_url = "{server.url}/v1"
wire_api = "responses"
"""
    )
    script.scripts = [f"<think>I look.</think>Let me see.{call('exec_command', cmd='cat a.py')}", "It prints hello."]
    answer = run("codex", "exec", "--skip-git-repo-check", QUESTION, folder=folder)
    assert answer.splitlines()[-1] == "It prints hello."
    assert 'print("hello")' in result(script)
