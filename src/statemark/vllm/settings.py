"""What the operator asked for: the rule, or nothing at all. From vLLM's additional config and the environment.

Knows no vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from statemark.errors import ConfigurationError

VARIABLE = "STATEMARK_VLLM"
KEY = "statemark"  # in --additional-config
CHOICES = ("exact", "fast", "off")
DEFAULT = "exact"


@dataclass(frozen=True)
class Settings:
    """`rule` is the name of a chunk rule, None where the plugin is switched off; `source` says who decided."""

    rule: str | None
    source: str


def read_settings(additional: object, environ: Mapping[str, str]) -> Settings:
    """The environment outranks the config, so that the plugin can be switched off without touching flags.

    `additional` is vLLM's `additional_config`: any object, of which only a mapping's key "statemark" is read.
    """
    value = environ.get(VARIABLE, "").strip().lower()
    if value:
        return _choice(value, f"{VARIABLE}={value}", f"the environment variable {VARIABLE}")
    own = additional.get(KEY) if isinstance(additional, Mapping) else None
    if own is None:
        return Settings(DEFAULT, "the default")
    where = f'--additional-config {{"{KEY}": ...}}'
    if not isinstance(own, Mapping):
        raise ConfigurationError(
            f"{where}: expected an object, got {own!r}", hint=f'for example {{"{KEY}": {{"rule": "fast"}}}}'
        )
    unknown = sorted(str(k) for k in own if k != "rule")
    if unknown:
        raise ConfigurationError(f"{where}: unknown option {', '.join(unknown)}", hint='the only option is "rule"')
    if "rule" not in own:
        return Settings(DEFAULT, "the default")
    return _choice(own["rule"], f"{where}: rule {own['rule']!r}", "the additional config")


def _choice(value: object, shown: str, source: str) -> Settings:
    if value not in CHOICES:
        raise ConfigurationError(f"{shown} is not a choice of the plugin", hint=f"use one of {', '.join(CHOICES)}")
    return Settings(None if value == "off" else str(value), source)
