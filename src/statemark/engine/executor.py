"""What the engine needs of whoever computes: run a step plan, give logits, say what a state slot has consumed.

The model's executor implements it with kernels; tests and the simulator bring their own. Imports neither.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from statemark.engine.sequence import StepPlan

F32 = npt.NDArray[np.float32]
U64 = npt.NDArray[np.uint64]


class Executor(Protocol):
    """`page_bytes` and `slot_bytes` price the cache's ids; `fingerprint` separates what may not be mixed.
    `precision` and `isa` say in words what is in it."""

    vocab_size: int
    max_model_len: int
    page_bytes: int
    slot_bytes: int
    fingerprint: str
    precision: str
    isa: str

    def allocate(self, num_pages: int, num_slots: int) -> None:
        """Reserve (not commit) memory for that many pages and slots. Called once, before anything else."""

    def run(self, plan: StepPlan) -> None:
        """Compute all tokens of the plan; afterwards states, pages and marks are written."""

    def logits(self, rows: Seq[int]) -> F32:
        """Logits float32 [len(rows), vocab_size] of these token rows of the last plan."""

    def stamps(self, slot: int) -> U64:
        """(count, hash) that the kernels wrote beside the state, uint64 [recurrent layers, 2]."""

    def set_stamps(self, slot: int, stamps: U64) -> None:
        """Write what a state that was brought from elsewhere has consumed."""

    def page_memory(self, page: int) -> memoryview:
        """A page's bytes over all layers, writable; valid while the process runs."""

    def slot_memory(self, slot: int) -> memoryview:
        """A state's bytes over all layers, whatever belongs to it but its stamps; writable."""

    def release_page(self, page: int) -> None:
        """Give a free page's memory back to the operating system."""

    def release_slot(self, slot: int) -> None:
        """Give a free slot's memory back to the operating system."""
