"""Loads fused.c (compiled with the system's C compiler on first use) as differentiable torch functions.

A development speed-up only: `available(shape)` says no where no compiler is, and the model then runs in plain torch.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.shape import Shape

SOURCE = Path(__file__).resolve().parent / "fused.c"
BUILD = Path(__file__).resolve().parent / "run"
BLOCK = 16
# Not -ffast-math as a whole: linked with it, the library would switch the process to flushing subnormals when loaded.
LOOSE = ["-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros"]
FLAGS = ["-O3", "-march=native", *LOOSE, "-shared", "-fPIC"]


class Dims(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("batch", "length", "heads", "stride")]


@cache
def library(key_dim: int, value_dim: int) -> ctypes.CDLL | None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None or os.environ.get("TRAINING_PLAIN"):
        return None
    command = [compiler, *FLAGS, f"-DDK={key_dim}", f"-DDV={value_dim}", str(SOURCE)]
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(command).encode()).hexdigest()[:12]
    path = BUILD / f"fused-{digest}.so"
    if not path.exists():
        BUILD.mkdir(exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, "-o", str(temporary), "-lmvec", "-lm"], check=True)
        temporary.rename(path)  # two workers may build at once
    return ctypes.CDLL(str(path))


def available(s: Shape) -> bool:
    return s.key_heads == s.value_heads and s.conv_width == 4 and library(s.key_dim, s.value_dim) is not None


def _at(*tensors: Tensor) -> list[ctypes.c_void_p]:
    assert all(t.is_contiguous() and t.dtype == torch.float32 for t in tensors)
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


class DeltaCore(torch.autograd.Function):
    """(projection [B, T, R], conv [C, W], rate [H], dt_bias [H], norm [DV]) -> gated, normalised heads [B, T, H*DV]."""

    @staticmethod
    def forward(ctx: Any, proj: Tensor, conv: Tensor, rate: Tensor, dt: Tensor, norm: Tensor, s: Shape) -> Tensor:
        lib = library(s.key_dim, s.value_dim)
        assert lib is not None
        batch, length, stride = proj.shape
        dims = Dims(batch, length, s.value_heads, stride)
        taps = conv.t().contiguous()
        out = proj.new_empty(batch, length, s.value_heads * s.value_dim)
        pre, act = (proj.new_empty(batch, length, s.conv_dim) for _ in range(2))
        states = proj.new_empty(batch, -(-length // BLOCK), s.value_heads, s.key_dim, s.value_dim)
        lib.forward(ctypes.byref(dims), *_at(proj, taps, rate, dt, out, pre, act, states))
        y = torch.empty_like(out)
        lib.gate_forward(ctypes.byref(dims), *_at(proj, out, norm), ctypes.c_float(s.eps), *_at(y))
        ctx.save_for_backward(proj, taps, rate, dt, norm, out, pre, act, states)
        ctx.s, ctx.dims, ctx.lib = s, dims, lib
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        proj, taps, rate, dt, norm, out, pre, act, states = ctx.saved_tensors
        lib, dims = ctx.lib, ctypes.byref(ctx.dims)
        dproj, dgo = torch.empty_like(proj), torch.empty_like(out)
        dtaps, drate, ddt, dnorm = (torch.zeros_like(t) for t in (taps, rate, dt, norm))
        lib.gate_backward(
            dims, *_at(proj, out, norm), ctypes.c_float(ctx.s.eps), *_at(grads[0].contiguous(), dgo, dproj, dnorm)
        )
        # act is overwritten with its own gradient: one backward pass only.
        lib.backward(dims, *_at(proj, taps, rate, dt, pre, act, states, dgo, dproj, dtaps, drate, ddt))
        return dproj, dtaps.t(), drate, ddt, dnorm, None


class SwiGlu(torch.autograd.Function):
    """gate | up [.., 2I] -> silu(gate) * up [.., I]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Shape) -> Tensor:
        lib = library(s.key_dim, s.value_dim)
        assert lib is not None
        width = x.shape[-1] // 2
        out = x.new_empty(*x.shape[:-1], width)
        lib.swiglu_forward(ctypes.c_long(out.numel() // width), width, *_at(x, out))
        ctx.save_for_backward(x)
        ctx.lib = lib
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        width = x.shape[-1] // 2
        dx = torch.empty_like(x)
        ctx.lib.swiglu_backward(ctypes.c_long(x.numel() // (2 * width)), width, *_at(x, grads[0].contiguous(), dx))
        return dx, None
