"""The machine that a server will run on: what class of GPU, and the token budget that vLLM 0.32 defaults to on it.

Knows names, memory and compute capability; nothing of models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from statemark.errors import ConfigurationError


class Kind(Enum):
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    CPU = "cpu"


class Usage(Enum):
    """Who asks: `vllm serve` or the offline LLM class. Their default budgets differ."""

    SERVER = "server"
    OFFLINE = "offline"


@dataclass(frozen=True)
class Platform:
    """One accelerator of the machine. `memory_gib` is what the driver reports, a little under the name's number."""

    name: str
    kind: Kind
    memory_gib: float
    capability: int = 0
    float32_states: bool = False  # a CPU with AVX512-BF16 keeps recurrent states in float32 unless told otherwise
    assumed: bool = False


_CUDA = {
    "t4": (15, 75),
    "v100": (32, 70),
    "a10": (22, 86),
    "a10g": (22, 86),
    "a30": (24, 80),
    "a40": (45, 86),
    "a100-40": (40, 80),
    "a100": (79, 80),
    "a6000": (48, 86),
    "rtx3090": (24, 86),
    "l4": (22, 89),
    "l40": (45, 89),
    "l40s": (45, 89),
    "rtx4090": (24, 89),
    "rtx6000-ada": (48, 89),
    "h100-64": (64, 90),
    "h100": (79, 90),
    "h20": (96, 90),
    "h200": (140, 90),
    "gh200": (95, 90),
    "b200": (179, 100),
    "gb200": (184, 100),
    "b300": (268, 103),
    "rtx5090": (32, 120),
    "rtx-pro-6000": (95, 120),
    "gb10": (119, 121),
}
_ROCM = {"mi210": 64, "mi250": 64, "mi300x": 192, "mi325x": 256, "mi355x": 288}

DEFAULT = Platform("h100", Kind.CUDA, 79, 90, assumed=True)


def known_names() -> list[str]:
    return [*_CUDA, *_ROCM, "cpu", "cpu-avx512-bf16", "xpu"]


def platform(name: str) -> Platform:
    """A platform by the usual name of its accelerator, in any spelling of case, spaces and dashes."""
    key = re.sub(r"[ _]+", "-", name.strip().lower()).removeprefix("nvidia-").removesuffix("gb")
    if key in ("h100-80", "a100-80"):
        key = key[:4]
    if key in _CUDA:
        memory, capability = _CUDA[key]
        return Platform(key, Kind.CUDA, memory, capability)
    if key in _ROCM:
        return Platform(key, Kind.ROCM, _ROCM[key])
    if key in ("cpu", "cpu-avx512-bf16"):
        return Platform(key, Kind.CPU, 0, float32_states=key != "cpu")
    if key == "xpu":
        return Platform(key, Kind.XPU, 48)
    raise ConfigurationError(f"unknown GPU {name!r}", hint=f"known are {', '.join(known_names())}")


def default_budget(machine: Platform, usage: Usage, ranks: int) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs) where the flags are absent."""
    server = usage is Usage.SERVER
    if machine.kind is Kind.CPU:
        return (2048 * ranks, 128 * ranks) if server else (4096 * ranks, 256 * ranks)
    if machine.memory_gib >= 160:
        return 16384, 1024
    if machine.memory_gib >= 70 and not machine.name.startswith("a100"):
        return (8192 if server else 16384), 1024
    return (2048 if server else 8192), 256
