"""/metrics for Prometheus. Where a number means what vLLM's means it has vLLM's name, so that dashboards go on working.

Owns the names; they don't change. Counts jobs as it is told of them, and asks the engine for the rest when scraped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from statemark.server.record import Record
from statemark.server.served import ServedModel

log = logging.getLogger("statemark.server")

_LABELS = ("model_name", "engine")
_SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAPS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_TOKENS = tuple(n * 10**e for e in range(6) for n in (1, 2, 5))

# Name in `Engine.stats` -> (our name, is it a counter, help). Bytes in bytes, tokens in tokens.
_STATS = {
    "requests_running": ("vllm:num_requests_running", False, "Sequences that are being computed."),
    "requests_waiting": ("vllm:num_requests_waiting", False, "Sequences that wait for a place."),
    "preemptions": ("vllm:num_preemptions", True, "Sequences that went back to the queue for want of memory."),
    "prompt_tokens_cached": ("vllm:prefix_cache_hits", True, "Prompt tokens that were not computed again."),
    "steps": ("statemark:engine_steps", True, "Steps of the engine."),
    "drafts": ("vllm:spec_decode_num_drafts", True, "Steps of a sequence in which tokens were guessed."),
    "draft_tokens": ("vllm:spec_decode_num_draft_tokens", True, "Tokens that were guessed."),
    "draft_tokens_accepted": ("vllm:spec_decode_num_accepted_tokens", True, "Guessed tokens that were right."),
    "tokens_computed": ("statemark:tokens_computed", True, "Tokens that went through the model."),
    "cache_bytes": ("statemark:cache_bytes", False, "Bytes that pages and states may take together."),
    "cache_used_bytes": ("statemark:cache_used_bytes", False, "Bytes of pages and states that are in use."),
    "pages_used": ("statemark:cache_pages", False, "Pages of keys and values in use."),
    "slots_used": ("statemark:cache_states", False, "Recurrent states in use."),
    "marks": ("statemark:cache_marks", False, "Recurrent states that a later prompt can start from."),
    "marks_published": ("statemark:cache_marks_published", True, "Marks that were made."),
    "marks_evicted": ("statemark:cache_marks_evicted", True, "Marks that made room for others."),
    "integrity_errors": ("statemark:integrity_errors", True, "States that were not what they should be; never used."),
}
_LOST = "tokens_lost_"  # how the engine's counters of them begin

# The same for the disk tier, told only where there is one. Its other counters are reasons, see `_disk`.
_DISK = {
    "disk_marks": ("statemark:disk_marks", False, "Marks of this model in the cache directory."),
    "disk_bytes": ("statemark:disk_bytes", False, "Bytes of all files in the cache directory."),
    "disk_hits": ("statemark:disk_hits", True, "Prompts whose beginning was read from disk."),
    "disk_tokens_restored": ("statemark:disk_tokens_restored", True, "Prompt tokens that were read, not computed."),
    "disk_bytes_read": ("statemark:disk_read_bytes", True, "Bytes that were read for hits."),
    "disk_marks_written": ("statemark:disk_marks_written", True, "Marks that were written."),
    "disk_bytes_written": ("statemark:disk_written_bytes", True, "Bytes of the files that were written."),
    "disk_evicted": ("statemark:disk_marks_evicted", True, "Files that made room for others."),
    "disk_leftovers_removed": ("statemark:disk_leftovers_removed", True, "Half-written files of processes that died."),
}
_ON_DISK = "disk_"


class Metrics:
    """See `Watch`. `stats` is the engine's, as last heard."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.model_name = ""
        self.stats: Mapping[str, float] = {}
        self.registry.register(_EngineStats(self))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*_LABELS, *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(name, text, _LABELS, buckets=tuple(buckets), registry=self.registry)

        self._prompt = counter("vllm:prompt_tokens", "Prompt tokens of requests that began to answer.")
        self._queries = counter("vllm:prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.")
        self._generated = counter("vllm:generation_tokens", "Tokens that were written.")
        self._success = counter("vllm:request_success", "Choices that ended, by reason.", "finished_reason")
        self._failures = counter("statemark:request_failures", "Requests that the engine failed on.")
        self._refusals = counter("statemark:requests_refused", "Requests that found the queue full (429).")
        self._aborted = counter("statemark:requests_aborted", "Requests whose client left before the end.")
        self._normalized = counter(
            "statemark:system_prompts_normalized", "Prompts that --normalize-system took values of their own out of."
        )
        self._parted = counter(
            "statemark:prompts_parted",
            "Prompts that share a beginning with the cache, by the role of the message in which they part from it.",
            "role",
        )
        self._first = histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._gap = histogram("vllm:inter_token_latency_seconds", "Between a choice's tokens.", _GAPS)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", _SECONDS)
        self._queue = histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", _SECONDS)
        self._prefill = histogram("vllm:request_prefill_time_seconds", "From there to the first token.", _SECONDS)
        self._decode = histogram("vllm:request_decode_time_seconds", "From there to the last token.", _SECONDS)
        self._inference = histogram("vllm:request_inference_time_seconds", "First step to last token.", _SECONDS)
        self._prompt_sizes = histogram("vllm:request_prompt_tokens", "Prompt tokens a request.", _TOKENS)
        self._answer_sizes = histogram("vllm:request_generation_tokens", "Tokens written a request.", _TOKENS)
        self._longest = histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice.", _TOKENS
        )

    def loaded(self, model: ServedModel | None) -> None:
        """All numbers are told with the model's name; None if it couldn't be loaded."""
        self.model_name = model.name if model is not None else ""

    def of(self, metric: Any, *more: str) -> Any:
        return metric.labels(self.model_name, "0", *more)

    def buckets(self) -> dict[str, list[tuple[float | None, float]]]:
        """Of each latency, how many were at most so many seconds (None: in all), for percentiles over any time."""
        found: dict[str, list[tuple[float | None, float]]] = {"first_token": [], "gap": []}
        for name, histogram in (("first_token", self._first), ("gap", self._gap)):
            for sample in (s for family in histogram.collect() for s in family.samples):
                if sample.name.endswith("_bucket") and sample.labels["model_name"] == self.model_name:
                    limit = float(sample.labels["le"])
                    found[name].append((limit if math.isfinite(limit) else None, sample.value))
        return found

    def normalized(self) -> None:
        log.debug("a system prompt held values of its own; they were set to zeros")
        self.of(self._normalized).inc()

    # --- Watch ----------------------------------------------------------------------------------------------

    def submitted(self, record: Record) -> None: ...

    def news(self, record: Record, delta: Any) -> None:
        before = record.output_tokens
        gap = record.add(delta)
        if not before and record.first_token is not None and delta.token_ids:
            self.of(self._first).observe(record.first_token)
            self.of(self._prompt).inc(record.prompt_tokens)
            self.of(self._queries).inc(sum(len(r.prompt_token_ids) for r in record.requests if r.use_cache))
        if delta.lookup is not None and delta.lookup.shared and delta.lookup.first_different is not None:
            self.of(self._parted, delta.lookup.role or "unknown").inc()
        if gap is not None:
            self.of(self._gap).observe(gap)
        if delta.token_ids:
            self.of(self._generated).inc(len(delta.token_ids))
        if delta.finish_reason is not None and delta.error is None:
            self.of(self._success, delta.finish_reason).inc()

    def released(self, record: Record) -> None:
        if record.failed:
            self.of(self._failures).inc()
        elif len(record.finish_reasons) < sum(request.params.n for request in record.requests):
            self.of(self._aborted).inc()
        else:
            self.of(self._whole).observe(record.age())
            self.of(self._prompt_sizes).observe(record.prompt_tokens)
            self.of(self._answer_sizes).observe(record.output_tokens)
            self.of(self._longest).observe(max(record.choice_tokens.values(), default=0))
            self._observe_phases(record)

    def _observe_phases(self, record: Record) -> None:
        begun, first, last = record.begun, record.first_token, record.last_token
        if begun is not None and first is not None and last is not None:
            for metric, seconds in (
                (self._queue, begun),
                (self._prefill, first - begun),
                (self._decode, last - first),
                (self._inference, last - begun),
            ):
                self.of(metric).observe(seconds)

    def refused(self) -> None:
        self.of(self._refusals).inc()


class _EngineStats:
    """The engine's own numbers, in Prometheus' terms."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics

    def collect(self) -> Iterator[Metric]:
        stats, labels = self.metrics.stats, (self.metrics.model_name, "0")
        for name, (public, counts, text) in (_STATS | (_DISK if "disk_marks" in stats else {})).items():
            family = (CounterMetricFamily if counts else GaugeMetricFamily)(public, text, labels=_LABELS)
            family.add_metric(labels, stats.get(name, 0))
            yield family
        lost = CounterMetricFamily(
            "statemark:prefix_tokens_lost",
            "Cached prompt tokens computed again because no mark was left at them, by what became of the mark.",
            labels=(*_LABELS, "mark"),
        )
        for name, value in stats.items():
            if name.startswith(_LOST):
                lost.add_metric((*labels, name.removeprefix(_LOST)), value)
        yield lost
        if "disk_marks" in stats:
            yield self._disk(stats, labels)
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Share of the cache that is in use; 1 is all.", labels=_LABELS
        )
        usage.add_metric(labels, stats.get("cache_used_bytes", 0) / max(1, stats.get("cache_bytes", 0)))
        yield usage

    def _disk(self, stats: Mapping[str, float], labels: tuple[str, str]) -> Metric:
        """Whatever counter the tier adds has its reason in its name: none is lost for want of a line in a table."""
        family = CounterMetricFamily(
            "statemark:disk_passed_over",
            "Marks that were not read from disk or not written to it, and files that were of no use, by reason.",
            labels=(*_LABELS, "reason"),
        )
        for name, value in stats.items():
            if name.startswith(_ON_DISK) and name not in _DISK:
                family.add_metric((*labels, name.removeprefix(_ON_DISK)), value)
        return family


async def metrics(request: Request) -> Response:
    """A step may take long: then the engine's numbers are those of the last time."""
    state = request.app.state.server
    if state.engine.backend is not None:
        with contextlib.suppress(TimeoutError):
            state.metrics.stats = await asyncio.wait_for(state.engine.run(lambda model: dict(model.stats())), 2.0)
    return Response(generate_latest(state.metrics.registry), media_type=CONTENT_TYPE_LATEST)
