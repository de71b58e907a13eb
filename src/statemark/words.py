"""Small words of messages that every layer writes."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 token`, `2,000 tokens`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
