"""Runs step plans on a model: turns chunks into the kernels' flat batch, and owns the arena of pages and states."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from statemark.engine.executor import F32, U64
from statemark.engine.sequence import StepPlan
from statemark.errors import ConfigurationError, IntegrityError
from statemark.models import Model
from statemark.models.backend import RuntimeLike, backend_of


class ModelExecutor:
    """An `Executor` over a loaded model. `runtime` is the one that the model was loaded with."""

    def __init__(self, model: Model, runtime: RuntimeLike) -> None:
        spec = model.spec
        self.model = model
        self.vocab_size = spec.vocab_size
        self.max_model_len = spec.max_model_len
        self.page_bytes = spec.page_bytes
        self.slot_bytes = spec.slot_bytes
        self.fingerprint = spec.fingerprint
        self.precision = spec.dtype
        self.isa = runtime.isa
        self._backend: Any = backend_of(runtime)
        self._hidden: F32 = np.empty((0, spec.hidden_size), dtype=np.float32)

    def allocate(self, num_pages: int, num_slots: int) -> None:
        spec = self.model.spec
        try:
            self.arena = self._backend.Arena(
                num_pages, spec.page_elems, spec.kv_dtype, num_slots, spec.slot_floats, spec.num_recurrent_layers
            )
        except (ValueError, MemoryError) as error:
            raise ConfigurationError(
                f"no room for {num_pages:,} pages of {self.page_bytes:,} bytes and {num_slots:,} states of "
                f"{self.slot_bytes:,} bytes: {error}",
                hint="lower cache_memory",
            ) from None

    def run(self, plan: StepPlan) -> None:
        chunks = plan.chunks
        for chunk in chunks:
            if chunk.page_copy is not None:
                # A hit inside a page: its head is the prefix's, what follows belongs to this sequence alone.
                self.arena.copy_page(*chunk.page_copy)
        counts = np.array([c.count for c in chunks], dtype=np.int32)
        starts = np.array([c.start for c in chunks], dtype=np.int32)
        seq_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        token_ids = np.concatenate([c.tokens for c in chunks])
        positions = np.concatenate([np.arange(c.start, c.end, dtype=np.int32) for c in chunks])
        table = np.zeros((len(chunks), max(len(c.pages) for c in chunks)), dtype=np.int32)
        for row, chunk in zip(table, chunks, strict=True):
            row[: len(chunk.pages)] = chunk.pages
        marks = [(s, offset, slot) for s, c in enumerate(chunks) for offset, slot in c.copies]
        batch = self._backend.Batch(
            token_ids,
            seq_start,
            starts,
            np.array([c.stamp for c in chunks], dtype=np.uint64),
            np.array([c.state_in for c in chunks], dtype=np.int32),
            np.array([c.state_out for c in chunks], dtype=np.int32),
            np.array(marks, dtype=np.int32).reshape(-1, 3),
            table,
        )
        self._hidden = self.model.forward(batch, token_ids, positions, self.arena)

    def logits(self, rows: Seq[int]) -> F32:
        if len(rows) and not 0 <= min(rows) <= max(rows) < len(self._hidden):
            raise IntegrityError(f"logits of rows {min(rows)} to {max(rows)} asked, the step had {len(self._hidden)}")
        return self.model.logits(np.ascontiguousarray(self._hidden[list(rows)]))

    def stamps(self, slot: int) -> U64:
        return np.asarray(self.arena.stamps[slot], dtype=np.uint64)

    def set_stamps(self, slot: int, stamps: U64) -> None:
        self.arena.stamps[slot] = stamps

    def page_memory(self, page: int) -> memoryview:
        return memoryview(self.arena.page(page)).cast("B")

    def slot_memory(self, slot: int) -> memoryview:
        return memoryview(self.arena.slot(slot)).cast("B")

    def release_page(self, page: int) -> None:
        self.arena.release_page(page)

    def release_slot(self, slot: int) -> None:
        self.arena.release_slot(slot)
