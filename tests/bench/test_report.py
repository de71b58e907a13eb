"""Figures, limits and the table: arithmetic that documents quote."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from statemark.bench import Cell, Limits, Work, machine_facts, make_report, measure_limits, render_table, work_of
from statemark.bench.limits import best_seconds
from statemark.bench.machine import cpu_model, memory_bytes
from statemark.bench.measure import Run
from statemark.kernels import Runtime
from statemark.models.make_model import write_model
from statemark.models.shapes import config_json, named_shape

PREFILL, DECODE = Cell("prefill", 100, 1, 1), Cell("decode", 16, 11, 2)
WORK = Work(layer_parameters=1_000, head_parameters=500, decode_bytes=3_000)
LIMITS = Limits(product_rate=2e6, read_rate=3e5)


def report_of(prefill_seconds: list[float]):  # type: ignore[no-untyped-def]
    runs = {
        PREFILL: [Run(PREFILL, seconds, 0.0, 0) for seconds in prefill_seconds],
        DECODE: [Run(DECODE, 0.5, 0.25, 20)],
    }
    model = {"name": "toy", "dtype": "bfloat16", "weight_bytes": 3000, "isa": "portable", "threads": 1}
    machine = {"statemark": "0", "cpu": "toy", "cores": 1, "memory_gib": 1.0}
    return make_report(runs, work=WORK, limits=LIMITS, model=model, machine=machine, settings={})


def test_figures_are_medians_with_spread_beside_the_limit() -> None:
    prefill, decode = report_of([0.5, 0.1, 0.2]).figures
    assert (prefill.median, prefill.low, prefill.high, prefill.runs) == (500.0, 200.0, 1000.0, [200.0, 1000.0, 500.0])
    assert prefill.first_token_ms == 200.0
    # 2e6 operations a second, 2 x 1000 a token: 1000 tokens a second.
    assert (prefill.limit, prefill.share) == (1000.0, 0.5)
    # 3000 bytes a step at 3e5 a second: 100 steps of two streams.
    assert (decode.median, decode.limit, decode.share) == (80.0, 200.0, 0.4)


def test_many_streams_are_bound_by_products() -> None:
    assert WORK.decode_limit(2e6, 3e5, streams=1) == pytest.approx(100)
    assert WORK.decode_limit(2e6, 3e5, streams=1000) == pytest.approx(2e6 / 3000)


def test_the_table_has_every_figure_and_what_it_was_measured_on() -> None:
    text = render_table(report_of([0.1]))
    assert "prefill 100" in text
    assert "1000.0" in text
    assert "100%" in text
    assert "decode, 2 streams" in text
    assert "model    toy, bfloat16" in text
    assert "limits   0 GFLOP/s from registers, 0.0 GB/s read" in text
    assert text == "\n".join(line.rstrip() for line in text.splitlines())


def test_json_holds_plain_data() -> None:
    data = report_of([0.1, 0.2]).to_json()
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"model", "machine", "settings", "limits", "figures"}


@pytest.mark.parametrize("like", ["qwen3.5-0.8b", "qwen3.5-9b"])
def test_work_counts_what_a_token_multiplies(like: str, tmp_path: Path) -> None:
    shape = named_shape(like, "tiny")
    config = config_json(shape, "bfloat16")
    made = write_model(tmp_path / "model", config, seed=0, dtype="bfloat16")
    everything = made.parameters
    work = work_of(made.path, 2 * everything)
    embedding = shape.vocab * shape.hidden
    assert work.head_parameters == embedding
    # All parameters but the embedding (which is the head, too, where it is tied), norms, biases and convolutions.
    matrices = made.parameters - embedding * (1 if shape.tied else 2)
    assert 0.98 * matrices < work.layer_parameters < matrices
    # The head is read once a step; the embedding of an untied model isn't.
    share = (work.layer_parameters + embedding) / (work.layer_parameters + embedding * (1 if shape.tied else 2))
    assert work.decode_bytes == pytest.approx(2 * everything * share)
    assert work_of(made.path, everything).decode_bytes == pytest.approx(work.decode_bytes / 2)


def test_a_limit_is_the_best_run_and_the_first_does_not_count() -> None:
    calls: list[int] = []
    assert best_seconds(lambda: calls.append(1), 3) >= 0.0
    assert len(calls) == 4


def test_limits_are_measured_for_every_precision() -> None:
    runtime = Runtime(threads=1)
    for dtype in ("bfloat16", "float32", "int8", "int4"):
        limits = measure_limits(runtime, dtype, repeats=1)
        assert limits.product_rate > 0
        assert limits.read_rate > 0
        assert np.isfinite(limits.product_rate)


def test_machine_facts() -> None:
    facts = machine_facts()
    assert facts["cores"] >= 1
    assert facts["memory_gib"] > 0
    assert facts["cpu"]


def test_a_hidden_processor_name_gets_family_and_model(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n")
    assert cpu_model(path) == "AMD EPYC (family 25, model 1)"
    assert cpu_model(tmp_path / "absent")
    assert memory_bytes(tmp_path / "absent") == 0
    path.write_text("MemFree: 1 kB\nMemTotal:       2048 kB\n")
    assert memory_bytes(path) == 2 * 2**20
