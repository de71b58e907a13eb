"""The `statemark` command: one file per command, loaded when it is asked for. Nothing imports cli."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 2 the user can fix it, 130 interrupted."""
    from statemark.cli.frame import run

    return run(argv)


__all__ = ["main"]
