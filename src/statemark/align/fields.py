"""Typed reading of a Hugging Face config: every missing or wrong field is named in the error.

Knows JSON and nothing of models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statemark.errors import CheckpointError

_MISSING = object()


class Fields:
    """A config, or the text part of one, with the name to use in messages."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self._values = values
        self.where = where

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        return self._values.get(name)

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is present, as a whole number."""
        for name in names:
            value = self._values.get(name, _MISSING)
            if value is _MISSING or value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise CheckpointError(f"{self.where}: {name} must be a whole number, got {value!r}")
            return value
        if default is None:
            raise CheckpointError(
                f"{self.where}: {' or '.join(names)} is missing",
                hint="is this the config.json of the whole model, not of one of its parts?",
            )
        return default

    def text(self, name: str, default: str | None = None) -> str | None:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise CheckpointError(f"{self.where}: {name} must be text, got {value!r}")
        return value

    def strings(self, name: str) -> list[str] | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise CheckpointError(f"{self.where}: {name} must be a list of names, got {value!r}")
        return value

    def integers(self, name: str) -> list[int] | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise CheckpointError(f"{self.where}: {name} must be a list of whole numbers, got {value!r}")
        return value

    def part(self, name: str) -> Fields | None:
        """A nested object."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise CheckpointError(f"{self.where}: {name} must be an object, got {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def dtype(self) -> str:
        """The dtype that vLLM's `--dtype auto` takes: bfloat16 and float16 as they are, float32 becomes bfloat16."""
        name = self.text("dtype") or self.text("torch_dtype") or "bfloat16"
        name = name.removeprefix("torch.")
        if name in ("float32", "float"):
            return "bfloat16"
        if name not in ("bfloat16", "float16"):
            raise CheckpointError(f"{self.where}: unknown dtype {name!r}")
        return name
