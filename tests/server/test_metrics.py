"""/metrics: Prometheus' own parser reads it, counters say what happened, names are vLLM's where the meaning is."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from statemark.server.loaded import LoadedModel
from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually, running

# Names that dashboards and alerts were written for; removing one breaks them.
PUBLIC = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_preemptions",
    "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:request_success",
    "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "statemark:prefix_tokens_lost",
    "statemark:cache_marks",
    "statemark:requests_refused",
    "statemark:requests_aborted",
    "statemark:request_failures",
}


def scrape(served: Running) -> dict[str, float]:
    """Samples by name; those with a label of their own as name{value}."""
    response = httpx.get(f"{served.url}/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            own = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            samples[f"{sample.name}{{{own[0]}}}" if own else sample.name] = sample.value
    return samples


def ask(served: Running, **fields: Any) -> httpx.Response:
    return httpx.post(f"{served.url}/v1/completions", json={"prompt": "abc", "max_tokens": 3} | fields)


def test_every_public_name_is_there_with_its_model() -> None:
    with running(FakeModel) as found:
        ask(found)
        families = list(text_string_to_metric_families(httpx.get(f"{found.url}/metrics").text))
        assert {family.name for family in families} >= PUBLIC
        for family in families:
            for sample in family.samples:
                assert sample.labels["model_name"] == "fake"
                assert family.documentation


def test_counters_say_what_happened() -> None:
    with running(FakeModel) as found:
        ask(found)
        ask(found, n=2)
        ask(found, prompt=["abcd", "x"], stream=True)
        ask(found, prompt="ab\0c", max_tokens=50)
        ask(found, prompt="!fail")
        eventually(lambda: found.state.engine.held == 0)
        seen = scrape(found)
    assert seen["vllm:prompt_tokens_total"] == 3 + 3 + (4 + 1) + 4
    assert seen["vllm:generation_tokens_total"] == 3 + 2 * 3 + 2 * 3 + 3
    assert seen["vllm:request_success_total{length}"] == 1 + 2 + 2
    assert seen["vllm:request_success_total{stop}"] == 1
    assert seen["vllm:time_to_first_token_seconds_count"] == 4
    assert seen["vllm:e2e_request_latency_seconds_count"] == 4
    assert seen["vllm:inter_token_latency_seconds_count"] == 2 + 2 * 2 + 2 * 2 + 2
    assert seen["vllm:request_generation_tokens_sum"] == seen["vllm:generation_tokens_total"]
    assert seen["vllm:request_max_num_generation_tokens_sum"] == 3 + 3 + 3 + 3
    assert seen["statemark:request_failures_total"] == 1
    assert seen.get("statemark:requests_aborted_total", 0) == 0
    assert seen["vllm:kv_cache_usage_perc"] == 0.25


def test_refused_and_abandoned_requests_are_counted() -> None:
    model = FakeModel()
    model.max_num_seqs = 1
    model.gate.clear()
    with running(lambda: model, settings=Settings(port=0, max_waiting=0)) as found:
        host, port = found.url.removeprefix("http://").split(":")
        body = b'{"prompt": "abc"}'
        with socket.create_connection((host, int(port))) as wire:
            head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            wire.sendall(head.encode() + body)
            eventually(lambda: found.state.engine.held == 1)
            assert ask(found).status_code == 429
        eventually(lambda: found.state.engine.held == 0)
        seen = scrape(found)
        assert seen["statemark:requests_refused_total"] == 1
        assert seen["statemark:requests_aborted_total"] == 1
        model.gate.set()


def test_a_scrape_never_waits_for_a_long_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = FakeModel()
    entered, leave = threading.Event(), threading.Event()
    step = model.step

    def slow() -> Any:
        entered.set()
        leave.wait(60)
        return step()

    with running(lambda: model) as found:
        ask(found)
        before = scrape(found)
        monkeypatch.setattr(model, "step", slow)
        thread = threading.Thread(target=lambda: ask(found))
        thread.start()
        assert entered.wait(30)
        assert scrape(found)["statemark:engine_steps_total"] == before["statemark:engine_steps_total"]
        leave.set()
        thread.join(30)


def test_while_loading_there_are_numbers_too() -> None:
    gate = threading.Event()

    def load() -> FakeModel:
        gate.wait(30)
        return FakeModel()

    with running(load, wait=False) as found:
        assert scrape(found)["vllm:num_requests_running"] == 0
        gate.set()


def test_a_real_engine_counts_its_hits(real: Running) -> None:
    before = scrape(real)
    for _ in range(2):
        ask(real, prompt=list(range(200, 260)), temperature=0)
    after = scrape(real)

    def gained(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert gained("vllm:prefix_cache_queries_total") == 120
    assert gained("vllm:prefix_cache_hits_total") == 59
    assert gained("statemark:cache_marks_published_total") > 0

    # Where a request's time went: its phases follow each other without a gap.
    phases = {name: gained(f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")}
    assert min(phases.values()) > 0
    assert gained("vllm:request_queue_time_seconds_count") == 2
    assert phases["queue"] + phases["prefill"] == pytest.approx(gained("vllm:time_to_first_token_seconds_sum"))
    assert phases["prefill"] + phases["decode"] == pytest.approx(gained("vllm:request_inference_time_seconds_sum"))


DISK = {
    "statemark:disk_marks": "gauge",
    "statemark:disk_bytes": "gauge",
    "statemark:disk_hits": "counter",
    "statemark:disk_tokens_restored": "counter",
    "statemark:disk_read_bytes": "counter",
    "statemark:disk_marks_written": "counter",
    "statemark:disk_written_bytes": "counter",
    "statemark:disk_marks_evicted": "counter",
    "statemark:disk_leftovers_removed": "counter",
    "statemark:disk_passed_over": "counter",
}


def test_the_disk_tier_is_told_where_there_is_one(tiny: Path, tmp_path: Path) -> None:
    """After a restart a prompt comes from disk, and a damaged file is counted under its reason."""
    prompt = list(range(100, 400))

    def load() -> LoadedModel:
        # A disk as fast as can be: else a prompt of this size is computed sooner than it is read.
        model = LoadedModel.load(tiny, num_threads=1, cache_memory="64MiB", max_num_seqs=2, cache_dir=tmp_path)
        model.text.engine.disk.pace.worth = lambda *sizes: True  # type: ignore[union-attr,method-assign]
        return model

    with running(load) as first:
        ask(first, prompt=prompt, temperature=0)
    (tmp_path / f"{'0' * 32}.mark").write_bytes(b"not a checkpoint")
    with running(load) as second:
        ask(second, prompt=prompt, temperature=0)
        seen = scrape(second)
        stats = second.state.engine.backend.stats()  # type: ignore[union-attr]
        text = httpx.get(f"{second.url}/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: families[name].type for name in DISK if name in families} == DISK
    assert all(families[name].documentation for name in DISK)
    assert seen["statemark:disk_marks"] >= 1
    assert seen["statemark:disk_bytes"] > 0
    assert seen["statemark:disk_hits_total"] == 1
    assert seen["statemark:disk_tokens_restored_total"] == stats["disk_tokens_restored"] > 0
    assert seen["statemark:disk_read_bytes_total"] == stats["disk_bytes_read"] > 0
    assert seen["statemark:disk_passed_over_total{damaged}"] == 1


def test_without_a_disk_tier_nothing_is_told_of_one(served: Running) -> None:
    assert [name for name in scrape(served) if name.startswith("statemark:disk")] == []
