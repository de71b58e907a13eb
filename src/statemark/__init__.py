"""Statemark: exact prefix caching for hybrid language models.

    from statemark import LLM, SamplingParams

    llm = LLM("./model")
    print(llm.generate("Once upon a time", SamplingParams(max_tokens=32))[0].outputs[0].text)

Public names come from private modules and are loaded when they are first used, so that a command which needs no model
starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statemark.engine.llm import LLM
    from statemark.engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, TextDelta
    from statemark.engine.params import SamplingParams
    from statemark.errors import (
        CheckpointError,
        ConfigurationError,
        IntegrityError,
        InvalidRequestError,
        StatemarkError,
        UserError,
    )

__version__ = "0.1.0"

_HOMES = {
    "statemark.engine.llm": ("LLM",),
    "statemark.engine.outputs": ("CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput", "TextDelta"),
    "statemark.engine.params": ("SamplingParams",),
    "statemark.errors": (
        "CheckpointError",
        "ConfigurationError",
        "IntegrityError",
        "InvalidRequestError",
        "StatemarkError",
        "UserError",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "CheckpointError",
    "CompletionOutput",
    "ConfigurationError",
    "IntegrityError",
    "InvalidRequestError",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StatemarkError",
    "TextDelta",
    "UserError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'statemark' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
