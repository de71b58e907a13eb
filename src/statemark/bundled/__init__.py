"""The small hybrid model that ships with Statemark, as package data.

Owns the place of the files; must not know how to load them.
"""

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """Folder with config.json, model.safetensors, the tokenizer and the chat template: what `load_model` takes."""
    return Path(__file__).resolve().parent
