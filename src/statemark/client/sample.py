"""Random text to learn a server's ordinary token ids from."""

from __future__ import annotations

import random

_PIECES, _WORDS = 4, 120  # of the sample whose tokens make up documents
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def sample_texts(seed: int) -> list[str]:
    """Random short words and numbers, in pieces that fit any context: what the pool of token ids is taken from."""
    draw = random.Random(f"sample {seed}")
    words = ["".join(draw.choices(_LETTERS, k=draw.randrange(1, 7))) for _ in range(_PIECES * _WORDS)]
    return [" ".join(words[i * _WORDS : (i + 1) * _WORDS]) for i in range(_PIECES)]
