"""The option --require: what CI's stage for optional packages relies on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEST = "def test_it():\n    pass\n"

# Name -> source, and what becomes of it with --require no_such_package.
CASES = {
    "passes": (TEST, "PASSED"),
    "skips": ("import pytest\n\ndef test_it():\n    pytest.importorskip('no_such_package')\n", "FAILED"),
    "inner": ("import pytest\n\ndef test_it():\n    pytest.importorskip('no_such_package.inner')\n", "FAILED"),
    "module": (f"import pytest\n\npytest.importorskip('no_such_package')\n\n{TEST}", "ERROR"),
    "another": (f"import pytest\n\npytest.importorskip('another_package')\n\n{TEST}", "SKIPPED"),
    "marked": (f"import pytest\n\n@pytest.mark.skip(reason='no such hardware')\n{TEST}", "SKIPPED"),
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


def test_a_skip_for_want_of_a_required_package_is_a_failure(folder: Path) -> None:
    status, out = run(folder, "--require", "no_such_package")
    assert status != 0
    for name, (_, outcome) in CASES.items():
        assert re.search(rf"^{outcome} .*test_{name}\.py", out, re.M), f"{name} should be {outcome}:\n{out}"


def test_a_skip_is_a_skip_otherwise(folder: Path) -> None:
    status, out = run(folder)
    assert status == 0, out
    assert len(re.findall(r"^SKIPPED ", out, re.M)) == 5
