"""Leaves this folder's tests out, and says so, where torch or transformers are absent."""

from __future__ import annotations

from importlib.util import find_spec

ABSENT = [name for name in ("torch", "transformers") if find_spec(name) is None]

collect_ignore_glob = ["test_*.py"] if ABSENT else []


def pytest_report_header() -> str | None:
    return f"reference tests left out: {' and '.join(ABSENT)} not installed" if ABSENT else None
