"""The option --no-skips: what CI's stages for optional packages rely on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Name -> source, and what becomes of it with --no-skips.
CASES = {
    "passes": ("def test_it():\n    pass\n", "PASSED"),
    "skips": ("import pytest\n\ndef test_it():\n    pytest.importorskip('no_such_package')\n", "FAILED"),
    "marked": ("import pytest\n\n@pytest.mark.skip\ndef test_it():\n    pass\n", "ERROR"),
    "module": ("import pytest\n\npytest.importorskip('no_such_package')\n\ndef test_it():\n    pass\n", "ERROR"),
    "expected": ("import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    assert False\n", "XFAIL"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("skips")
    for name, (code, _) in CASES.items():
        (path / f"test_{name}.py").write_text(code)
    return path


def run(folder: Path, *options: str) -> tuple[int, str]:
    # In a process of its own, with this repository's conftest as a plugin and none of its settings.
    own = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *own, "-rA", "--continue-on-collection-errors", *options, str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_skip_is_a_failure_when_asked_for(folder: Path) -> None:
    status, out = run(folder, "--no-skips")
    assert status != 0
    for name, (_, outcome) in CASES.items():
        assert re.search(rf"^{outcome} \S*test_{name}\.py", out, re.M), out
    assert "SKIPPED" not in out


def test_a_skip_is_a_skip_otherwise(folder: Path) -> None:
    status, out = run(folder)
    assert status == 0
    assert out.count("SKIPPED") == 3
