"""The smallest real model: every kernel is used, and a prompt of hundreds of tokens takes milliseconds."""

from __future__ import annotations

from pathlib import Path

from statemark.models.make_model import write_model
from statemark.models.shapes import Shape, config_json

SHAPE = Shape(
    layers=4, hidden=64, intermediate=96, heads=4, kv_heads=2, key_heads=2, value_heads=4, tied=True, vocab=512,
    head_dim=32, recurrent_dim=16, positions=8192,
)  # fmt: skip


def write_tiny(folder: Path, seed: int = 3) -> Path:
    write_model(folder, config_json(SHAPE, "float32"), seed=seed, dtype="float32")
    return folder
