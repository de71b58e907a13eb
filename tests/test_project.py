"""Rules about the repository itself: layout, layers, public names, and documents that name real things."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import statemark

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "statemark"
CODE_SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".hpp", ".inl", ".sh", ".cmake"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".toml", ".txt", ".html", ".yml", ".yaml", ".json"}
SKIPPED_FOLDERS = {"__pycache__", ".ci-work", "build", "dist", ".git", ".venv", "fixtures", "data"}
MAX_LINES = 400


def repository_files(suffixes: set[str]) -> list[Path]:
    """Files of the project's own folders, not what tools leave in the root (caches, environments)."""
    own = [ROOT / name for name in ("src", "tests", "benchmarks", "training", "docs", ".ci") if (ROOT / name).is_dir()]
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for folder in own:
        found += [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in found if not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in found if path.suffix in suffixes or path == ROOT / ".ci" / "run")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def pyproject() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def source_modules() -> list[Path]:
    return [path for path in repository_files({".py"}) if path.is_relative_to(SOURCE)]


def test_a_file_owns_one_idea_and_stays_short() -> None:
    lengths = {relative(path): len(path.read_text().splitlines()) for path in repository_files(CODE_SUFFIXES)}
    assert lengths, "found no code: the walk is broken"
    assert {name: count for name, count in lengths.items() if count > MAX_LINES} == {}


def test_every_module_says_what_it_owns() -> None:
    modules = [path for path in source_modules() if path.read_text().strip()]
    silent = [relative(path) for path in modules if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_no_machine_paths() -> None:
    # Spelled in halves so that this file passes its own rule.
    pattern = re.compile("|".join(prefix + "/" for prefix in ("/wo" + "rk", "/ro" + "ot", "/ho" + "me", "/op" + "t")))
    lines = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in repository_files(TEXT_SUFFIXES)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert lines == []


def _part(name: str) -> bool:
    return SOURCE.joinpath(*name.split(".")[1:], "__init__.py").exists()


def layer_names() -> set[str]:
    contracts = pyproject()["tool"]["importlinter"]["contracts"]  # type: ignore[index]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.strip() for layer in layers for name in layer.split("|")}
    # Import-linter writes optional layers in parentheses.
    there = {name.strip("()") for name in named if not name.startswith("(")}
    return there | {name.strip("()") for name in named if _part(name.strip("()"))}


def test_every_part_has_a_layer() -> None:
    parts = {f"statemark.{path.name}" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    parts |= {f"statemark.{path.stem}" for path in SOURCE.glob("*.py") if path.stem not in ("__init__", "__main__")}
    assert parts == layer_names()


def test_layers_hold() -> None:
    pytest.importorskip("importlinter")
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"]
    done = subprocess.run([*command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def public_packages() -> list[str]:
    return ["statemark", *sorted(name for name in layer_names() if (SOURCE / name.split(".")[1]).is_dir())]


@pytest.mark.parametrize("name", public_packages())
def test_public_names_are_listed_once_and_exist(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(getattr(module, "__all__", []))
    assert len(listed) == len(set(listed))
    missing = [public for public in listed if not hasattr(module, public)]
    assert missing == []


def imported_names(init: Path) -> set[str]:
    """Names that a package's __init__ re-exports from its own modules."""
    names: set[str] = set()
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.level > 0 or (node.module or "").startswith("statemark.")):
            names |= {alias.asname or alias.name for alias in node.names}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in public_packages() if name != "statemark.cli"])
def test_what_a_package_re_exports_is_in_its_all(name: str) -> None:
    init = SOURCE.joinpath(*name.split(".")[1:], "__init__.py")
    assert imported_names(init) <= set(getattr(importlib.import_module(name), "__all__", []))


def test_one_version() -> None:
    assert pyproject()["project"]["version"] == statemark.__version__  # type: ignore[index]


def test_the_exception_tree_is_drawn_completely() -> None:
    text = (SOURCE / "errors.py").read_text()
    drawing = ast.get_docstring(ast.parse(text)) or ""
    classes = re.findall(r"^class (\w+)", text, re.M)
    assert classes
    assert [name for name in classes if name not in drawing] == []


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    local = [target for target in targets if not re.match(r"\w+:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", documents(), ids=relative)
def test_documents_name_real_files(document: Path) -> None:
    """`engine/core.py` in a document must be a file: from the root, from the package, or from the C++ sources."""
    named = re.findall(r"`([\w./-]+/[\w.-]+\.(?:py|cpp|h|md|toml|sh))`", document.read_text())
    places = (ROOT, SOURCE, SOURCE / "kernels" / "csrc", ROOT / "src")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_map_has_every_package() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    packages = [name.removeprefix("statemark.") for name in public_packages()[1:]]
    assert [name for name in packages if f"`{name}/`" not in text] == []


def test_readme_and_ci_run_the_same_test_command() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "python -m pytest" in readme
    assert 'python" -m pytest' in (ROOT / ".ci" / "run").read_text()


def test_the_wheel_holds_what_is_read_at_run_time() -> None:
    """The wheel takes the package's folder whole, but for what git ignores and these patterns."""
    build = pyproject()["tool"]["scikit-build"]  # type: ignore[index]
    assert build["wheel"]["packages"] == ["src/statemark"]
    needed = [SOURCE / "server" / "dashboard.html", *sorted((SOURCE / "bundled").glob("*.json"))]
    ignored = [line for line in (ROOT / ".gitignore").read_text().split() if not line.endswith("/")]
    for path in needed:
        assert path.is_file()
        assert not any(fnmatch.fnmatch(relative(path), pattern) for pattern in [*build["wheel"]["exclude"], *ignored])
