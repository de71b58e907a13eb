"""generation_config.json: what a model's makers recommend for sampling, and which ids end an answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statemark.errors import CheckpointError
from statemark.models.config import read_json, token_ids

# File key -> name in SamplingParams.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True)
class GenerationDefaults:
    """`sampling` holds only what the file says, under the names of SamplingParams."""

    sampling: dict[str, Any] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Defaults of a model folder; empty where it has no generation_config.json."""
    path = folder / "generation_config.json"
    if not path.exists():
        return GenerationDefaults()
    raw = read_json(path, "")
    sampling: dict[str, Any] = {}
    for key, name in _NAMES.items():
        value = raw.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"{path.name}: {key} must be a number, got {value!r}")
        sampling[name] = value
    if raw.get("do_sample") is False:
        sampling["temperature"] = 0.0
    return GenerationDefaults(sampling, token_ids("eos_token_id", raw.get("eos_token_id")))
