"""Options that every test run shares.

CI gives --require in the stage in which an optional package is installed: a test that is skipped there because the
package is missing looks like one that passed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("no clock", deadline=None)  # a busy machine makes no test fail
settings.load_profile("no clock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a test or module that is skipped because it can't import PACKAGE counts as failed",
    )


def _refuse_skip(config: pytest.Config, report: Any) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    wanted = [package for package in config.getoption("--require") if f"import '{package}" in reason]
    if wanted:
        report.outcome = "failed"
        report.longrepr = f"{reason}\n(--require {wanted[0]}: nothing may be skipped for want of it in this run)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(item.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    _refuse_skip(collector.config, report)
    return report
