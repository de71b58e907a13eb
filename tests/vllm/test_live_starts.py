"""Starts as users make them: the HTTP server, ranks in processes of their own, the switch, a known version."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("vllm")
from statemark.vllm import versions
from tests.vllm.live.runs import ROOT, environment, script

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def test_the_installed_version_is_known() -> None:
    assert versions.changed(versions.installed()) == ()


def test_the_plugin_is_found_by_vllm() -> None:
    """Through the package's entry points, as an installed wheel has them."""
    code = (
        "from vllm.plugins import load_plugins_by_group as load\n"
        "from vllm.v1.metrics.loggers import load_stat_logger_plugin_factories as loggers\n"
        "print('statemark' in load('vllm.general_plugins'), [c.__name__ for c in loggers()])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert "True ['StatemarkStatLogger']" in done.stdout


def test_over_http() -> None:
    """`vllm serve` with `--scheduler-cls` and `--additional-config`, the engine in another process, the metric."""
    found = script("tests.vllm.live.server", "http")
    assert "prefills are cut by the rule 'fast' (chosen by the additional config)" in found["log"]
    assert found["log"].count("statemark: minimum-prefix") == 1
    assert found["cached"][0] == 0
    assert found["cached"][1] > 0
    active = 'statemark_vllm_active{engine="0",rule="fast",status="active"} 1.0'
    assert active in found["metrics"]


def test_over_two_ranks() -> None:
    """Scheduler and both workers in processes of their own: cold, warm and sibling answers agree."""
    found = script("tests.vllm.live.server", "ranks")
    (none, cold), (reused, warm) = found["cold"], found["warm"]
    assert (none, reused) == (0, 800)
    assert warm == cold
    assert [cached for cached, _ in found["siblings"]] == [800, 1120]
    assert {d for _, d in found["siblings"]} == {found["cold_sibling"][1]}
    assert "prefills are cut by the rule 'exact'" in found["log"]


def test_switched_off() -> None:
    """vLLM's own class, and one line of ours in the log."""
    code = (
        "from tests.vllm.live.bare import Bare, attention, state\n"
        "made = Bare.build('statemark.vllm.Scheduler', [attention(384), state(384)], 2048)\n"
        "print('CLASS', type(made.scheduler).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment(STATEMARK_VLLM="off"),
    )
    assert "CLASS vllm.v1.core.sched.scheduler" in done.stdout
    assert (done.stdout + done.stderr).count("statemark:") == 1
