"""Loads a model and starts an engine just large enough for the run. Owns sizes; times only the loading."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemark.bench.measure import Settings
from statemark.cache import PAGE_TOKENS
from statemark.engine.core import Engine
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.sampler import Sampler
from statemark.kernels import Runtime
from statemark.models import Model, load_model


@dataclass(frozen=True)
class Started:
    engine: Engine
    model: Model
    runtime: Runtime
    load_seconds: float

    def describe(self, name: str) -> dict[str, Any]:
        spec = self.model.spec
        return {
            "name": name,
            "architecture": spec.architecture,
            "dtype": spec.dtype,
            "weight_bytes": spec.weight_bytes,
            "isa": self.runtime.isa,
            "threads": self.runtime.threads,
            "load_seconds": round(self.load_seconds, 2),
        }


def start_engine(
    folder: Path,
    settings: Settings,
    *,
    dtype: str = "auto",
    quantization: str | None = None,
    threads: int = 0,
    isa: str | None = None,
    max_num_batched_tokens: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Started:
    begun = time.perf_counter()
    runtime = Runtime(threads=threads, isa=isa)
    model = load_model(
        folder,
        runtime=runtime,
        dtype=dtype,
        quantization=quantization,
        max_model_len=settings.longest,
        progress=progress,
    )
    spec = model.spec
    pages = -(-settings.longest // PAGE_TOKENS)
    chosen: dict[str, Any] = (
        {} if max_num_batched_tokens is None else {"max_num_batched_tokens": max_num_batched_tokens}
    )
    engine = Engine(
        ModelExecutor(model, runtime),
        Sampler(runtime),
        cache_bytes=settings.most_streams * (spec.slot_bytes + pages * spec.page_bytes),
        enable_prefix_caching=False,
        max_num_seqs=settings.most_streams,
        **chosen,
    )
    return Started(engine, model, runtime, time.perf_counter() - begun)
