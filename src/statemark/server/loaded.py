"""The real served model: the offline API's parts under the server's names. Knows no HTTP."""

from __future__ import annotations

from typing import Any


class LoadedModel:
    @classmethod
    def load(cls, path: str, *, name: str | None = None, progress: Any = None, **arguments: Any) -> LoadedModel:
        raise NotImplementedError
