"""An `Executor` that computes nothing: states are their stamps, logits name a token that depends on the whole prefix.

For long soaks and for the cost of scheduling alone. Like real kernels it refuses a state that has consumed other tokens
than the plan says, and it leaves rubbish in what is freed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np

from statemark.cache import roll_stamp
from statemark.engine.executor import F32, U64
from statemark.engine.sequence import Chunk, StepPlan
from statemark.errors import IntegrityError

_RUBBISH = 0xDEADBEEF


class SimulatedExecutor:
    """`page_bytes` and `slot_bytes` are a 0.8B model's unless given; nothing of that size is allocated."""

    def __init__(
        self,
        *,
        vocab_size: int = 256,
        max_model_len: int = 1 << 20,
        page_bytes: int = 196_608,
        slot_bytes: int = 20_201_472,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.page_bytes = page_bytes
        self.slot_bytes = slot_bytes
        self.fingerprint = "simulated"
        self.precision = "none"
        self.isa = "none"
        self._pages: dict[int, bytearray] = {}
        self._slots: dict[int, bytearray] = {}
        self._states: dict[int, tuple[int, int]] = {}
        self._rows: list[int] = []

    def allocate(self, num_pages: int, num_slots: int) -> None:
        """Nothing is reserved."""

    def run(self, plan: StepPlan) -> None:
        self._rows = []
        for chunk in plan.chunks:
            self._run(chunk)

    def _run(self, chunk: Chunk) -> None:
        seen = self._states.get(chunk.state_in, (0, _RUBBISH))
        if chunk.state_in >= 0 and seen != (chunk.start, chunk.stamp):
            raise IntegrityError(f"slot {chunk.state_in} holds the state after {seen[0]} tokens, not {chunk.start}")
        tokens = chunk.tokens
        stamp, done = chunk.stamp, 0
        for offset, slot in chunk.copies:
            stamp, done = roll_stamp(stamp, tokens[done:offset]), offset
            self._states[slot] = (chunk.start + offset, stamp)
        stamp = roll_stamp(stamp, tokens[done:])
        self._states[chunk.state_out] = (chunk.end, stamp)
        self._rows.extend([-1] * (chunk.count - 1))  # nobody asks for these rows unless the prompt's are wanted
        self._rows.append(stamp)

    def logits(self, rows: Seq[int]) -> F32:
        out = np.zeros((len(rows), self.vocab_size), dtype=np.float32)
        for i, row in enumerate(rows):
            out[i, (self._rows[row] >> 40) % self.vocab_size] = 8.0
        return out

    def stamps(self, slot: int) -> U64:
        return np.array([self._states.get(slot, (0, _RUBBISH))], dtype=np.uint64)

    def set_stamps(self, slot: int, stamps: U64) -> None:
        self._states[slot] = (int(stamps[0, 0]), int(stamps[0, 1]))

    def page_memory(self, page: int) -> memoryview:
        """Nothing is computed, so this is what was last read from disk, or zeros."""
        return memoryview(self._pages.setdefault(page, bytearray(self.page_bytes)))

    def slot_memory(self, slot: int) -> memoryview:
        return memoryview(self._slots.setdefault(slot, bytearray(self.slot_bytes)))

    def release_page(self, page: int) -> None:
        self._pages.pop(page, None)

    def release_slot(self, slot: int) -> None:
        self._states.pop(slot, None)
        self._slots.pop(slot, None)


class SimulatedReductions:
    """The sampler's reductions, for greedy requests without log-probabilities."""

    def argmax(self, logits: F32) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
        best: np.ndarray[tuple[int, ...], np.dtype[np.int32]] = np.argmax(logits, axis=1).astype(np.int32)
        return best

    def top_logprobs(
        self, logits: F32, n: int, targets: np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    ) -> tuple[
        np.ndarray[tuple[int, ...], np.dtype[np.int32]], F32, F32, np.ndarray[tuple[int, ...], np.dtype[np.int32]]
    ]:
        order = np.argsort(-logits, axis=1, kind="stable")[:, :n].astype(np.int32)
        top = np.take_along_axis(logits, order.astype(np.int64), axis=1)
        return order, top, logits[np.arange(len(logits)), targets], np.ones(len(logits), dtype=np.int32)
