"""Facts about the machine that a figure means nothing without. Reads /proc; measures nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from statemark import __version__


def machine_facts() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, system and versions."""
    return {
        "cpu": cpu_model(Path("/proc/cpuinfo")),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_bytes(Path("/proc/meminfo")) / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "statemark": __version__,
    }


def cpu_model(cpuinfo: Path) -> str:
    """`model name`, with family and model where a virtual machine hides the real name."""
    fields: dict[str, str] = {}
    for line in _lines(cpuinfo):
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name


def memory_bytes(meminfo: Path) -> int:
    for line in _lines(meminfo):
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def load_average() -> float:
    """Processes that wanted to run during the last minute: above the number of cores, figures are not worth quoting."""
    return round(os.getloadavg()[0], 2)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
