"""The benchmark runs end to end at toy sizes and says the same in its table and its JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from statemark.cli import main
from statemark.kernels import Runtime, bench
from tests.kernels.inputs import ISAS


def once(self: bench.Bench, run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return max(time.perf_counter() - begin, 1e-9)


@pytest.fixture(autouse=True)
def _toy_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"HIDDEN": 64, "INTERMEDIATE": 96, "VOCAB": 8192, "GDN_HEADS": 2, "GDN_DIM": 16}
    sizes |= {"HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": 16, "ROTARY_DIM": 8}
    for name, value in sizes.items():
        monkeypatch.setattr(bench, name, value)
    linears = {"recurrent in": (64, 132), "recurrent out": (32, 64), "attention in": (64, 192)}
    monkeypatch.setattr(bench, "LINEARS", linears | {"gate and up": (64, 192), "down": (96, 64)})
    monkeypatch.setattr(bench.Bench, "_best", once)


@pytest.mark.parametrize("isa", ISAS)
def test_json_has_every_kernel_with_its_share_of_the_limits(isa: str) -> None:
    said = json.loads(bench.as_json(bench.measure(Runtime(2, isa), 1)))
    assert said["limits"]["isa"] == isa
    assert said["limits"]["threads"] == 2
    kinds = {row["kernel"].split()[0] for row in said["rows"]}
    assert kinds == {"linear", "a", "gated_delta_net", "attention", "rms_norm", "swiglu", "top_logprobs"}
    for row in said["rows"]:
        assert row["milliseconds"] > 0
        dtype = next((kind for kind in ("int8", "int4") if kind in row["kernel"]), "bfloat16")
        assert row["of_products"] == pytest.approx(row["gflops"] / said["limits"]["gflops"][dtype])
        assert row["of_reads"] == pytest.approx(row["gbytes"] / said["limits"]["gbytes"])


def test_the_command_prints_a_line_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--kernels", "--threads", "1", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{Runtime(1).isa}, 1 threads: reads ")
    assert lines[1].split()[:3] == ["kernel", "tokens", "ms"]
    assert len(lines) == 2 + 3 * 4 * 5 + 2 + 3 * 4 + 3 + 6 + 3
    assert len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize("extra", [["./model"], ["--like", "qwen3.5-0.8b"], ["--quantization", "int8"]])
def test_options_that_kernels_don_t_use_are_refused(extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--kernels", *extra]) == 2
    assert "--kernels runs no model" in capsys.readouterr().err
