"""The list of faults: name, what goes wrong in words, and what of the engine is exchanged for it."""

from __future__ import annotations

from dataclasses import dataclass

from statemark.engine.model_executor import ModelExecutor
from statemark.errors import ConfigurationError
from statemark.faults.arithmetic import ChunkRounding, MixesMates, SavedRounding
from statemark.faults.states import (
    ConvDropped,
    OneTokenLate,
    OtherRequest,
    PageHeadSkipped,
    SlotNotCleared,
    StateReset,
    WrongPosition,
)


@dataclass(frozen=True)
class Fault:
    """One fault. `executor` runs the model in place of the right one; `ignores_salts` drops every request's salt."""

    name: str
    words: str
    executor: type[ModelExecutor] = ModelExecutor
    ignores_salts: bool = False


_ALL = (
    Fault("wrong-position", "a hit goes on from the same prompt's state at an earlier position", WrongPosition),
    Fault("other-request", "a hit goes on from the state of another request", OtherRequest),
    Fault("one-token-late", "a state is saved after one token more than it is filed under", OneTokenLate),
    Fault("state-reset", "a hit reuses keys and values and starts from an empty recurrent state", StateReset),
    Fault("conv-dropped", "the convolution's last inputs are not saved with the state", ConvDropped),
    Fault("page-head", "a hit inside a page doesn't copy the page's head", PageHeadSkipped),
    Fault(
        "slot-not-cleared", "a fresh request's state slot still holds what another request left in it", SlotNotCleared
    ),
    Fault("salts-ignored", "requests with different cache salts share prefixes", ignores_salts=True),
    Fault("batch-mix", "logits take in a little of the batch mates' logits", MixesMates),
    Fault("chunk-rounding", "the state is rounded to bfloat16 wherever a chunk of a prompt ends", ChunkRounding),
    Fault("saved-rounding", "states are rounded to bfloat16 when they are saved", SavedRounding),
)
FAULTS = {fault.name: fault for fault in _ALL}


def named_fault(name: str) -> Fault:
    """The fault called so; ConfigurationError if there is none."""
    if name not in FAULTS:
        raise ConfigurationError(f"there is no fault {name!r}", hint=f"there are {', '.join(FAULTS)}")
    return FAULTS[name]
