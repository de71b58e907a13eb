"""Where a model's config.json comes from: a folder, the file itself, or a hub id through a function that is given.

Reads files; imports no hub client.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemark.errors import CheckpointError

Fetch = Callable[[str, str], Path]  # (hub id, file name) -> a local copy


@dataclass(frozen=True)
class ModelSource:
    """A parsed config.json, and how many bytes its weights take where that can be told."""

    name: str
    config: Mapping[str, Any]
    weight_bytes: int | None = None


def find_model(name: str, fetch: Fetch | None = None) -> ModelSource:
    """A model by folder, by its config.json, or by hub id."""
    path = Path(name).expanduser()
    if path.is_file():
        return ModelSource(name, _read(path))
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            raise CheckpointError(f"{path} has no config.json", hint="give the folder that the weights are in")
        weights = sum(f.stat().st_size for f in path.glob("*.safetensors"))
        return ModelSource(name, _read(file), weights or None)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local or fetch is None:
        raise CheckpointError(
            f"there is no model at {name}", hint="give a folder, a config.json, or a hub id such as Qwen/Qwen3-Next-80B"
        )
    return ModelSource(name, _read(fetch(name, "config.json")), _indexed_weights(name, fetch))


def _indexed_weights(name: str, fetch: Fetch) -> int | None:
    """The size that a sharded checkpoint's index tells; None for others."""
    try:
        index = json.loads(fetch(name, "model.safetensors.index.json").read_text(encoding="utf-8"))
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError, CheckpointError):
        return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"{path} is not valid JSON: {error.msg.removesuffix(' at')}, line {error.lineno}, column {error.colno}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"can't read {path}: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} must hold a JSON object, it holds {type(values).__name__}")
    return values


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`--hf-overrides` applied: nested objects are merged, everything else is replaced."""
    out = dict(config)
    for key, value in overrides.items():
        before = out.get(key)
        out[key] = with_overrides(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return out
