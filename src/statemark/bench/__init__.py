"""Timing of the engine, beside what the machine can do at all. Knows engine, models and kernels; no HTTP."""

from statemark.bench.limits import Limits, measure_limits
from statemark.bench.machine import machine_facts
from statemark.bench.measure import Cell, Settings, run_bench
from statemark.bench.report import BenchReport, Figure, make_report, render_table
from statemark.bench.start import Started, start_engine
from statemark.bench.work import Work, work_of

__all__ = [
    "BenchReport",
    "Cell",
    "Figure",
    "Limits",
    "Settings",
    "Started",
    "Work",
    "machine_facts",
    "make_report",
    "measure_limits",
    "render_table",
    "run_bench",
    "start_engine",
    "work_of",
]
