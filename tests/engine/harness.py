"""An engine over the toy executor, its sampler's reductions in NumPy, and the oracle that every schedule is held to."""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from statemark.engine.core import Engine
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest, StepOutput
from statemark.engine.sampler import Sampler
from tests.toy import ToyExecutor


class NumpyReductions:
    def argmax(self, logits):
        return np.argmax(logits, axis=1).astype(np.int32)

    def top_logprobs(self, logits, n, targets):
        wide = logits.astype(np.float64)
        peak = wide.max(axis=1, keepdims=True)
        lp = (wide - peak - np.log(np.exp(wide - peak).sum(axis=1, keepdims=True))).astype(np.float32)
        order = np.argsort(-lp, axis=1, kind="stable")
        top = order[:, :n].astype(np.int32)
        rows = np.arange(len(logits))
        target = lp[rows, targets]
        rank = (lp > target[:, None]).sum(axis=1).astype(np.int32) + 1
        return top, np.take_along_axis(lp, top.astype(np.int64), axis=1), target, rank


def engine(executor=None, *, cache_bytes=100_000, **options) -> Engine:
    return Engine(executor or ToyExecutor(), Sampler(NumpyReductions()), cache_bytes=cache_bytes, **options)


def request(request_id, prompt, *, turns=(), salt="", use_cache=True, eos=(), **params) -> EngineRequest:
    params.setdefault("temperature", 0.0)
    params.setdefault("logprobs", 20)
    params.setdefault("max_tokens", 4)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=tuple(int(t) for t in prompt),
        params=SamplingParams(**params),
        turn_positions=tuple(turns),
        cache_salt=salt,
        use_cache=use_cache,
        eos_token_ids=frozenset(eos),
    )


class Collected:
    """What one choice has said so far, and its digest."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list = []
        self.cached: int | None = None
        self.finish: str | None = None
        self.error: str | None = None
        self.prompt_logprobs = None

    def take(self, out: StepOutput) -> None:
        assert self.finish is None, "news after the end"
        self.tokens += out.new_token_ids
        self.logprobs += out.new_logprobs or []
        self.cached = out.num_cached_tokens
        self.finish = out.finish_reason
        self.error = out.error
        self.prompt_logprobs = out.prompt_logprobs or self.prompt_logprobs

    def digest(self) -> str:
        h = hashlib.sha256()
        for token, lp in zip(self.tokens, self.logprobs, strict=True):
            h.update(struct.pack("<i", token))
            h.update(struct.pack(f"<{len(lp.top_ids)}i", *lp.top_ids))
            h.update(struct.pack(f"<{len(lp.top_logprobs)}f", *lp.top_logprobs))
            h.update(struct.pack("<f", lp.logprob))
        return h.hexdigest()


def drain(e: Engine, seen: dict | None = None, steps: int = 10_000) -> dict[tuple[str, int], Collected]:
    seen = {} if seen is None else seen
    while e.has_work():
        steps -= 1
        assert steps, "the engine goes round in circles"
        step(e, seen)
    return seen


def step(e: Engine, seen: dict) -> None:
    before, dropped = e.steps, e.cache.counters["marks_discarded"]
    failures = sum(s.failures for s in [*e.scheduler.running, *e.scheduler.waiting])
    outputs = e.step()
    for out in outputs:
        seen.setdefault((out.request_id, out.index), Collected()).take(out)
    retried = sum(s.failures for s in [*e.scheduler.running, *e.scheduler.waiting]) > failures
    retried = retried or e.cache.counters["marks_discarded"] > dropped
    assert e.steps > before or outputs or retried, "an empty step while a request could run"
    e.check_integrity()


def one(e: Engine, r: EngineRequest) -> Collected:
    e.add_request(r)
    return drain(e)[(r.request_id, 0)]


def cold(r: EngineRequest, executor=None) -> Collected:
    """The oracle: alone, nothing cached, one token a step."""
    e = engine(executor, cache_bytes=1_000_000, max_num_batched_tokens=1, max_num_seqs=1, enable_prefix_caching=False)
    return one(e, r)
