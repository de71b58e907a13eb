"""Attention backends of vLLM 0.32: the kernel block sizes that they take, and which one a platform picks.

Only what a block size depends on. Knows platforms and dtypes, not models.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from statemark.align.platforms import Kind, Platform
from statemark.errors import ConfigurationError


@dataclass(frozen=True)
class Backend:
    """`multiple_of` takes any multiple; `sizes` are the only kernel blocks. `preferred` overrides 16 as the start."""

    name: str
    multiple_of: int | None = None
    sizes: tuple[int, ...] = ()
    preferred: int | None = None

    @property
    def smallest(self) -> int:
        return self.multiple_of if self.multiple_of is not None else min(self.sizes)

    def accepts(self, block: int) -> bool:
        """Whether a manager's block can be cut into kernel blocks."""
        candidates = self.sizes or (self.smallest,)
        return any(block % size == 0 for size in candidates)

    def start(self, default: int = 16) -> int:
        """The block that this backend alone begins with."""
        if self.preferred is not None:
            return max(default, self.preferred)
        return default if self.accepts(default) else self.smallest

    def largest_within(self, tokens: int) -> int:
        """The largest kernel block of at most `tokens`, or the smallest of all."""
        if self.multiple_of is not None:
            return max(self.multiple_of, tokens // self.multiple_of * self.multiple_of)
        fitting = [s for s in self.sizes if s <= tokens]
        return max(fitting) if fitting else min(self.sizes)


_LARGE_PAGES = (16, 32, 64, 128, 256, 512, 1024)

BACKENDS = {
    b.name: b
    for b in (
        Backend("FLASH_ATTN", multiple_of=16),
        Backend("FLASHINFER", sizes=(16, 32, 64)),
        Backend("TRITON_ATTN", multiple_of=16),
        Backend("FLEX_ATTENTION", multiple_of=16),
        Backend("TURBOQUANT", sizes=(16, 32, 64, 128)),
        Backend("ROCM_ATTN", multiple_of=16),
        Backend("ROCM_AITER_FA", sizes=(16, 32)),
        Backend("ROCM_AITER_UNIFIED_ATTN", multiple_of=16, preferred=64),
        Backend("CPU_ATTN", multiple_of=32),
        Backend("FLASH_ATTN_MLA", multiple_of=16),
        Backend("FLASHMLA", sizes=(64,)),
        Backend("FLASHINFER_MLA", sizes=(32, 64)),
        Backend("CUTLASS_MLA", sizes=(128,)),
        Backend("TRITON_MLA", multiple_of=16),
        Backend("TOKENSPEED_MLA", sizes=(32, 64)),
        Backend("ROCM_AITER_MLA", multiple_of=1),
    )
}


def choose(machine: Platform, wanted: str | None, *, latent: bool, kv_dtype: str, grouped: bool) -> Backend:
    """The backend of the model's own attention layers: the flag's, or what the platform picks first."""
    name = wanted.upper() if wanted and wanted.lower() != "auto" else _default(machine, latent, kv_dtype)
    if name not in BACKENDS:
        raise ConfigurationError(
            f"--attention-backend {wanted}: its block sizes are not known here",
            hint=f"known are {', '.join(sorted(BACKENDS))}",
        )
    backend = BACKENDS[name]
    if name == "FLASHINFER" and machine.capability // 10 == 10 and grouped:
        return Backend(name, sizes=_LARGE_PAGES)
    if machine.kind is Kind.XPU and name == "FLASH_ATTN":
        return Backend(name, multiple_of=64, preferred=64)
    return backend


def _default(machine: Platform, latent: bool, kv_dtype: str) -> str:
    if machine.kind is Kind.CPU:
        return "CPU_ATTN"
    if kv_dtype.startswith("turboquant"):
        return "TURBOQUANT"
    if kv_dtype.endswith("per_token_head"):
        return "TRITON_ATTN"
    if latent:
        if machine.kind is Kind.ROCM:
            return "TRITON_MLA"
        return {9: "FLASH_ATTN_MLA", 10: "FLASHINFER_MLA"}.get(machine.capability // 10, "TRITON_MLA")
    if machine.kind is Kind.ROCM:
        return "ROCM_ATTN"
    if kv_dtype.startswith("nvfp4") or machine.capability // 10 == 10:
        return "FLASHINFER"
    return "FLASH_ATTN"


def common_start(backends: tuple[Backend, ...], default: int = 16) -> int:
    """The block that several backends begin with together: 16 if all take it, else their smallest common one."""
    if len(backends) == 1:
        return backends[0].start(default)
    if all(b.accepts(default) for b in backends):
        return default
    candidates = {1}
    for backend in backends:
        sizes = backend.sizes or (backend.smallest,)
        candidates = {lcm(c, s) for c in candidates for s in sizes}
    for candidate in sorted(candidates):
        if all(b.accepts(candidate) for b in backends):
            return candidate
    names = ", ".join(b.name for b in backends)
    raise ConfigurationError(f"attention backends {names} share no block size")
