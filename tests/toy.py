"""An executor whose logits depend on everything that a cache could get wrong, without a model.

Every token's logits are a hash of the recurrent state and of all page entries of its prefix, where a page entry is
itself a hash of token, position and state. A state or page from another prefix, another position or another request,
one token too many or too few: each changes the logits of every later token.
"""

from __future__ import annotations

import numpy as np

from statemark.cache import PAGE_TOKENS, roll_stamp
from statemark.engine.sequence import StepPlan
from statemark.errors import IntegrityError

_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    h = 0x243F6A8885A308D3
    for v in values:
        h = ((h ^ v) * 0xBF58476D1CE4E5B9) & _MASK
        h ^= h >> 29
        h = (h * 0x94D049BB133111EB) & _MASK
        h ^= h >> 32
    return h


class ToyExecutor:
    """`check_stamps=False` lets planted faults through to the answers instead of stopping them at the kernel."""

    def __init__(self, vocab_size: int = 50, max_model_len: int = 4096, page_bytes: int = 64, slot_bytes: int = 256):
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.page_bytes = page_bytes
        self.slot_bytes = slot_bytes
        self.fingerprint = "toy"
        self.precision = self.isa = "none"
        self.check_stamps = True
        self.released: list[tuple[str, int]] = []
        self.largest_step = 0
        self.plans: list[list[tuple[str, int, int]]] = []
        self.fail_on: str | None = None

    def allocate(self, num_pages: int, num_slots: int) -> None:
        rubbish = np.uint64(0xDEADBEEF)  # memory that nobody zeroed
        self.pages = np.full((num_pages, PAGE_TOKENS), rubbish)
        self.states = np.full(num_slots, rubbish)
        self._stamps = np.full((num_slots, 2, 2), rubbish)

    def release_page(self, page: int) -> None:
        self.released.append(("page", page))
        self.pages[page] = 0

    def release_slot(self, slot: int) -> None:
        self.released.append(("slot", slot))
        self.states[slot] = 0

    def page_memory(self, page: int) -> memoryview:
        return memoryview(self.pages[page]).cast("B")

    def slot_memory(self, slot: int) -> memoryview:
        return memoryview(self.states[slot : slot + 1]).cast("B")

    def set_stamps(self, slot: int, stamps: np.ndarray) -> None:
        self._stamps[slot] = stamps

    def stamps(self, slot: int) -> np.ndarray:
        return self._stamps[slot]

    def run(self, plan: StepPlan) -> None:
        self.largest_step = max(self.largest_step, plan.tokens)
        self.plans.append([(c.seq.request.request_id, c.start, c.count) for c in plan.chunks])
        if self.fail_on is not None and any(c.seq.request.request_id == self.fail_on for c in plan.chunks):
            raise RuntimeError("a planted failure")
        for chunk in plan.chunks:
            if chunk.page_copy is not None:
                source, target = chunk.page_copy
                self.pages[target] = self.pages[source]
        self._rows: list[int] = []
        for chunk in plan.chunks:
            self._run_chunk(chunk)

    def _run_chunk(self, chunk) -> None:
        if chunk.state_in < 0:
            assert chunk.start == 0, "a sequence in its middle was started from nothing"
            state = 0
        else:
            state = int(self.states[chunk.state_in])
            expected = np.array([chunk.start, chunk.stamp], dtype=np.uint64)
            if self.check_stamps and np.any(self._stamps[chunk.state_in] != expected):
                raise IntegrityError(f"slot {chunk.state_in} does not hold the state after {chunk.start} tokens")
        stamp = chunk.stamp
        marks = dict(chunk.copies)
        seen = 0
        for p in range(chunk.start):
            seen = mix(seen, int(self.pages[chunk.pages[p // PAGE_TOKENS], p % PAGE_TOKENS]))
        tokens = chunk.tokens
        for i, token in enumerate(tokens):
            p = chunk.start + i
            state = mix(state, int(token))
            stamp = roll_stamp(stamp, tokens[i : i + 1])
            entry = mix(int(token), p, state)
            self.pages[chunk.pages[p // PAGE_TOKENS], p % PAGE_TOKENS] = entry
            seen = mix(seen, entry)
            self._rows.append(mix(state, seen))
            if i + 1 in marks:
                self._write(marks[i + 1], state, p + 1, stamp)
        self._write(chunk.state_out, state, chunk.end, stamp)

    def _write(self, slot: int, state: int, count: int, stamp: int) -> None:
        self.states[slot] = state
        self._stamps[slot] = np.array([count, stamp], dtype=np.uint64)

    def logits(self, rows) -> np.ndarray:
        out = np.empty((len(rows), self.vocab_size), dtype=np.float32)
        for i, row in enumerate(rows):
            generator = np.random.Generator(np.random.PCG64(self._rows[row]))
            out[i] = generator.standard_normal(self.vocab_size, dtype=np.float32)
        return out
