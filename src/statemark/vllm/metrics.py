"""How the server's metrics tell that the plugin is active: `statemark_vllm_active` beside vLLM's own.

The scheduler runs in the engine's process, metrics are served by the front end. Between them vLLM sends statistics of
fixed fields, and one of these is a table of counters by name: the status travels there as a name, with the value 0,
which vLLM's own loggers pass over. Knows the status; not how it came about.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from statemark.vllm.activation import Activation

_PREFIX = "statemark:"
_NAME = "statemark_vllm_active"
_HELP = "Whether statemark cuts the prefills (1) or vLLM's own cut is used (0), by rule asked for and status"


def stamp(stats: Any, activation: Activation | None) -> Any:
    """The statistics of a step, with the plugin's status among them."""
    table = getattr(stats, "num_kv_fetch_reqs_by_stage", None)
    if activation is not None and isinstance(table, dict):
        table[f"{_PREFIX}{activation.settings.rule}:{activation.status.value}"] = 0
    return stats


def status_in(stats: Any) -> tuple[str, str] | None:
    """(rule, status) that a scheduler of ours put into its statistics."""
    for name in getattr(stats, "num_kv_fetch_reqs_by_stage", None) or ():
        if name.startswith(_PREFIX):
            rule, _, status = name.removeprefix(_PREFIX).partition(":")
            return rule, status
    return None


@cache
def _gauge() -> Any:
    from prometheus_client import Gauge

    return Gauge(_NAME, _HELP, ["engine", "rule", "status"], multiprocess_mode="mostrecent")


@cache
def _logger_class() -> type:
    from vllm.v1.metrics.loggers import StatLoggerBase

    def initialise(self: Any, vllm_config: Any, engine_index: int = 0) -> None:
        self.engine = str(engine_index)
        self.seen = None

    def record(self: Any, scheduler_stats: Any, *_: Any, **__: Any) -> None:
        found = status_in(scheduler_stats)
        if found is not None and found != self.seen:
            self.seen = found
            _gauge().labels(self.engine, *found).set(found[1] == "active")

    def log_engine_initialized(self: Any) -> None:
        pass

    methods = {"__init__": initialise, "record": record, "log_engine_initialized": log_engine_initialized}
    return type("StatemarkStatLogger", (StatLoggerBase,), methods)


def __getattr__(name: str) -> Any:
    """`StatLogger`, the class of the entry point `vllm.stat_logger_plugins`, made when vLLM asks for it."""
    if name == "StatLogger":
        return _logger_class()
    raise AttributeError(name)
