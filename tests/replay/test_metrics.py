"""Figures from records: definitions, and what no order of records may change."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.replay.compare import compare
from statemark.replay.metrics import per_turn, summary
from statemark.replay.page import draw_page
from statemark.replay.records import Record
from statemark.replay.report import figures, lines


def record(session="s", turn=1, *, at=0.0, arrivals=(0.5, 0.6, 0.8), seconds=1.0, number=1, **fields) -> Record:
    return Record(
        target="t", round=number, session=session, turn=turn, at=at, prompt=fields.pop("prompt", 100),
        output=fields.pop("output", len(arrivals)), arrivals=list(arrivals), seconds=seconds, **fields,
    )  # fmt: skip


@st.composite
def made(draw):
    gaps = draw(st.lists(st.floats(0.001, 2), min_size=1, max_size=5))
    arrivals = [float(x) for x in np.cumsum(gaps)]
    return record(
        str(draw(st.integers(0, 3))), draw(st.integers(1, 3)), at=draw(st.floats(0, 9)), arrivals=arrivals,
        seconds=arrivals[-1] + 0.01, cached=draw(st.integers(0, 99)), ideal=draw(st.integers(0, 99)),
        error=draw(st.sampled_from(["", "", "closed"])), number=draw(st.integers(1, 3)),
    )  # fmt: skip


records = st.lists(made(), min_size=1, max_size=10)


def test_definitions():
    out = summary([record(cached=60, ideal=80)])
    assert out["p50_ttft_ms"] == pytest.approx(500)
    assert out["p50_tpot_ms"] == pytest.approx(250)
    assert out["mean_itl_ms"] == pytest.approx(150)
    assert out["p99_e2el_ms"] == pytest.approx(1000)
    assert out["inverse_p90_e2el_per_output_token"] == pytest.approx(3.0)
    assert (out["cached_tokens"], out["computed_tokens"], out["lost_tokens"]) == (60, 40, 20)
    assert out["output_throughput"] == pytest.approx(3.0)
    assert out["total_token_throughput"] == pytest.approx(103.0)


@given(records, st.randoms())
def test_order_never_matters(found, shuffle: random.Random):
    mixed = list(found)
    shuffle.shuffle(mixed)
    a, b = summary(found), summary(mixed)
    assert a.keys() == b.keys()
    for key, value in a.items():
        assert b[key] == (pytest.approx(value) if isinstance(value, float) else value)


def test_rounds_follow_each_other_and_their_durations_add_up():
    rounds = [record(at=2.0, seconds=3.0), record(at=1.0, seconds=2.0), record(at=0.0, seconds=5.0, number=2)]
    assert summary(rounds)["duration"] == pytest.approx(4.0 + 5.0)
    assert summary(rounds)["request_throughput"] == pytest.approx(3 / 9)
    other_start = [replace(r, start=2) for r in rounds]
    assert summary([*rounds, *other_start])["duration"] == pytest.approx(18.0)


@given(records)
def test_every_request_is_counted_once_and_percentiles_rise(found):
    out = summary(found)
    assert out["completed"] + out["failed"] == len(found)
    assert sum(out["errors"].values()) == out["failed"]
    if out["completed"]:
        assert out["p50_ttft_ms"] <= out["p90_ttft_ms"] <= out["p99_ttft_ms"] <= out["p99_e2el_ms"]
    assert sum(row["requests"] for row in per_turn(found)) == out["completed"]


def test_warm_up_counts_for_nothing():
    assert summary([record(), record(warm_up=True, arrivals=[9.0], seconds=9.0)]) == summary([record()])


def test_where_nobody_tells_cached_tokens_there_is_no_figure():
    out = summary([record(cached=None)])
    assert out["cached_tokens"] is out["lost_tokens"] is None


@settings(deadline=None, max_examples=12)
@given(records)
def test_a_run_beside_itself_is_one(found):
    unique = list({(r.round, *r.key): r for r in found}.values())
    out = compare(unique, unique)
    for name in ("ttft", "e2el"):
        if out[name] is not None:
            assert out[name]["ratio"] == out[name]["low"] == out[name]["high"] == 1.0


@settings(deadline=None, max_examples=12)
@given(st.floats(0.1, 10), st.integers(1, 3))
def test_a_constant_factor_is_found_exactly(factor, rounds):
    base = [record(str(s), t, number=n) for n in range(1, rounds + 1) for s in range(3) for t in (1, 2)]
    other = [record(str(s), t, number=n, arrivals=[0.5 * factor], seconds=factor, at=3.0)
             for n in range(1, rounds + 1) for s in range(3) for t in (1, 2)]  # fmt: skip
    out = compare(base, other)
    assert (out["pairs"], out["rounds"]) == (6 * rounds, rounds)
    assert math.isclose(out["e2el"]["ratio"], factor, rel_tol=1e-9)
    assert math.isclose(out["e2el"]["high"], factor, rel_tol=1e-9)


def test_starts_that_differ_widen_the_interval_more_than_their_rounds():
    base = [record(str(s), number=n, start=k) for k in (1, 2, 3) for n in (1, 2) for s in range(4)]
    factors = {1: 0.5, 2: 1.0, 3: 2.0}  # each start of the server is another one, and its rounds agree
    other = [replace(r, seconds=r.seconds * factors[r.start]) for r in base]
    out = compare(base, other)
    assert (out["pairs"], out["starts"], out["rounds"]) == (24, 3, 6)
    assert out["e2el"]["ratio"] == pytest.approx(1.0)
    assert out["e2el"]["low"] < 0.7
    assert out["e2el"]["high"] > 1.4
    merged = [[replace(r, start=1) for r in side if r.start == 2] for side in (base, other)]
    assert compare(*merged)["e2el"]["low"] == pytest.approx(1.0)


def test_noise_widens_the_interval_around_the_truth():
    draw = random.Random(1)
    base, other = [], []
    for n in range(1, 4):
        for s in range(20):
            base.append(record(str(s), 1, number=n, seconds=1.0))
            other.append(record(str(s), 1, number=n, seconds=0.5 * math.exp(draw.gauss(0, 0.3))))
    out = compare(base, other)["e2el"]
    assert out["low"] < 0.5 < out["high"]
    assert out["high"] / out["low"] < 1.6


def test_reports_and_page():
    runs = {
        "a <b>": [record(str(i), 1 + i % 2, cached=50, ideal=60) for i in range(6)],
        "c": [record(str(i), 1 + i % 2) for i in range(5)] + [record("5", 2, error="closed", words="cut <off>")],
    }
    data = json.loads(json.dumps(figures({"trace": "x"}, runs)))
    text = "\n".join(lines(data))
    assert "P90 TTFT (ms)" in text
    assert "errors at c: 1 closed, first: cut <off>" in text
    assert "one start only" in text
    page = draw_page(data, runs)
    assert page == draw_page(data, runs)
    assert "<b>" not in page
    assert "<off>" not in page
    assert page.count("<svg") == 7
