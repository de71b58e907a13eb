"""A served model with a planted fault: says so in its fingerprint, its report and its notices. Never the default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from statemark.engine.request import EngineRequest
from statemark.engine.text_engine import Progress, TextEngine, load_text_engine
from statemark.errors import ConfigurationError
from statemark.faults import Fault
from statemark.server.loaded import LoadedModel


class FaultyModel(LoadedModel):
    """See `ServedModel`; its answers may be wrong on purpose."""

    def __init__(self, text: TextEngine, name: str, fault: Fault) -> None:
        super().__init__(text, name)
        self.fault = fault
        self.fingerprint = f"{self.fingerprint}-FAULT-{fault.name}"
        self.notices = [self._warning(), *self.notices]

    @classmethod
    def load_with(
        cls,
        fault: Fault,
        path: str | Path,
        *,
        name: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> FaultyModel:
        if options.get("cache_dir") is not None:
            raise ConfigurationError(
                "a planted fault would outlive this run in cache_dir", hint="leave out one of them"
            )
        text = load_text_engine(path, progress=progress, executor=fault.executor, **options)
        return cls(text, name or Path(path).resolve().name, fault)

    def add(self, request: EngineRequest) -> None:
        super().add(replace(request, cache_salt="") if self.fault.ignores_salts else request)

    def report(self) -> list[str]:
        return [*super().report(), self._warning()]

    def _warning(self) -> str:
        return f"UNSAFE: the fault {self.fault.name} is planted: {self.fault.words}. Answers may be wrong."
