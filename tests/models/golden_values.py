"""Stored logits of transformers for a few small models; made by tests/reference/make_golden.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "golden"
CONFIGS = ("interval-4-tied", "interval-2-bias", "custom-layers", "legacy-rope")
SEED = 11
LENGTH = 130
# Around pages of 16 tokens and around tiles and chunks of 64.
POSITIONS = [0, 1, 15, 16, 62, 63, 64, 65, 127, 129]


def golden(name: str) -> tuple[np.ndarray, float]:
    """(logits at POSITIONS, KL of transformers' bfloat16 forward from them)."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        return stored["logits"], float(stored["bfloat16_kl"])
