"""What commands say to a person, on stderr, so that stdout carries data only. Knows no command and no engine."""

from __future__ import annotations

import os
import sys

import click


def say(text: str = "") -> None:
    """One line on stderr. Colour only on a terminal, and not where NO_COLOR is set."""
    click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)


def report_error(message: str, hint: str = "") -> None:
    """`error:`, a blank line, `hint:`. The words carry the meaning; colour, where the terminal has it, only helps."""
    say(click.style("error:", fg="red", bold=True) + f" {message}")
    if hint:
        say()
        say(click.style("hint:", fg="cyan", bold=True) + f" {hint}")


def dim(text: str) -> str:
    return click.style(text, dim=True)


class Progress:
    """Shows loading as one line that rewrites itself, on a terminal only; elsewhere it keeps quiet."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self.shown = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if not self.live:
            return
        percent = 100 * done // total if total else 100
        text = f"{what} {percent:3d}%"
        if text != self.shown:
            self.shown = text
            click.echo(f"\r\033[K{text}", nl=False, err=True)

    def clear(self) -> None:
        if self.live and self.shown:
            click.echo("\r\033[K", nl=False, err=True)
            self.shown = ""
