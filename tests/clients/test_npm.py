"""Clients from npm: OpenAI's own and the AI SDK. STATEMARK_NPM names a folder in which they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import CALL
from tests.server.live_server import Running
from tests.server.scripted_model import ScriptedModel

HERE = Path(__file__).parent
FOLDER = os.environ.get("STATEMARK_NPM")
if FOLDER is None or shutil.which("node") is None:
    pytest.skip("could not import 'npm': STATEMARK_NPM names no folder, or there is no node", allow_module_level=True)


def run(name: str, server: Running) -> dict[str, Any]:
    """Node looks for packages beside the script, so it runs from where they are."""
    assert FOLDER is not None
    script = shutil.copy(HERE / name, FOLDER)
    done = subprocess.run(
        ["node", script, f"{server.url}/v1"], cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_openais_client(server: Running, script: ScriptedModel) -> None:
    script.scripts = ["hello", "hello there", CALL, "a response"]
    assert run("openai_client.mjs", server) == {
        "models": ["scripted"],
        "answer": "hello",
        "streamed": "hello there",
        "call": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
        "response": "a response",
        "error": [404, "model_not_found"],
    }


def test_the_ai_sdk_runs_a_tool_and_goes_on(server: Running, script: ScriptedModel) -> None:
    script.scripts = ["<think>hm</think>hello", "hello there", f"<think>I look</think>{CALL}", "It is sunny."]
    assert run("ai_sdk.mjs", server) == {
        "answer": ["hello", "hm"],
        "streamed": "hello there",
        "agent": "It is sunny.",
        "results": ["sunny in Rome"],
    }
    last = script.rendered[0][-1]
    assert (last["role"], last["content"]) == ("tool", "sunny in Rome")
