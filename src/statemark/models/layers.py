"""The blocks that decoder models are built of, each over a flat token batch, on top of the kernels.

Owns how a block's products and kernels follow each other. Knows no checkpoint names and no whole architecture.
Every block reads normalised activations and adds its result to the residual stream in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.models.backend import MatrixLike, RuntimeLike
from statemark.models.workspace import Workspace

F32 = NDArray[np.float32]

# Names of workspace buffers. "wide" holds fused projections, "narrow" what a kernel makes of them.
HIDDEN, NORMED, WIDE, NARROW = "hidden", "normed", "wide", "narrow"


@dataclass(frozen=True)
class Step:
    """What all layers of one forward share."""

    runtime: RuntimeLike
    workspace: Workspace
    batch: Any
    arena: Any
    cos: F32
    sin: F32
    rows: int


@dataclass(frozen=True)
class RmsNorm:
    """`weight` is what the normalised value is multiplied with, so it includes the "1 +" of zero-centred models."""

    weight: F32
    eps: float

    def run(self, runtime: RuntimeLike, x: F32, out: F32) -> None:
        runtime.rms_norm(x, self.weight, self.eps, out)


@dataclass(frozen=True)
class GatedAttention:
    """q (with its output gate), k, v in one product; attention; output product."""

    qkv: MatrixLike
    qkv_bias: F32 | None
    qkv_width: int
    kernel: Any
    mixed_width: int
    output: MatrixLike
    output_bias: F32 | None

    def mix(self, step: Step, x: F32, mixed: F32) -> None:
        projected = step.workspace.rows(WIDE, step.rows, self.qkv_width)
        step.runtime.linear(x, self.qkv, projected, self.qkv_bias)
        step.runtime.attention(self.kernel, projected, step.cos, step.sin, step.batch, step.arena, mixed)

    def add(self, runtime: RuntimeLike, mixed: F32, residual: F32) -> None:
        runtime.linear(mixed, self.output, residual, self.output_bias, accumulate=True)


@dataclass(frozen=True)
class GatedDeltaNet:
    """q, k, v, z, b, a in one product; convolution and recurrence; output product."""

    projections: MatrixLike
    projections_width: int
    kernel: Any
    mixed_width: int
    output: MatrixLike

    def mix(self, step: Step, x: F32, mixed: F32) -> None:
        projected = step.workspace.rows(WIDE, step.rows, self.projections_width)
        step.runtime.linear(x, self.projections, projected)
        step.runtime.gated_delta_net(self.kernel, projected, step.batch, step.arena, mixed)

    def add(self, runtime: RuntimeLike, mixed: F32, residual: F32) -> None:
        runtime.linear(mixed, self.output, residual, accumulate=True)


@dataclass(frozen=True)
class SwigluMlp:
    """gate and up in one product, silu(gate) * up, down product."""

    gate_up: MatrixLike
    down: MatrixLike
    inner: int

    def add(self, runtime: RuntimeLike, workspace: Workspace, x: F32, residual: F32) -> None:
        gate_up = workspace.rows(WIDE, len(x), 2 * self.inner)
        activated = workspace.rows(NARROW, len(x), self.inner)
        runtime.linear(x, self.gate_up, gate_up)
        runtime.swiglu(gate_up, activated)
        runtime.linear(activated, self.down, residual, accumulate=True)


@dataclass(frozen=True)
class DecoderLayer:
    """Pre-norm mixer and pre-norm MLP around one residual stream."""

    mixer_norm: RmsNorm
    mixer: GatedAttention | GatedDeltaNet
    mlp_norm: RmsNorm
    mlp: SwigluMlp

    def run(self, step: Step, residual: F32) -> None:
        mixed = step.workspace.rows(NARROW, step.rows, self.mixer.mixed_width)
        self.mix(step, residual, mixed)
        self.finish(step.runtime, step.workspace, mixed, residual)

    def mix(self, step: Step, residual: F32, mixed: F32) -> None:
        """Everything that reads or writes the state; the residual stream stays as it is."""
        normed = step.workspace.rows(NORMED, step.rows)
        self.mixer_norm.run(step.runtime, residual, normed)
        self.mixer.mix(step, normed, mixed)

    def finish(self, runtime: RuntimeLike, workspace: Workspace, mixed: F32, residual: F32) -> None:
        """The rest: each row by itself, so that it may run for a part of the rows."""
        self.mixer.add(runtime, mixed, residual)
        normed = workspace.rows(NORMED, len(residual))
        self.mlp_norm.run(runtime, residual, normed)
        self.mlp.add(runtime, workspace, normed, residual)


def rope_frequencies(rotary_dim: int, theta: float) -> F32:
    """theta^(-2i/R) as reference implementations round it: exponent, power and reciprocal each to float32."""
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    power = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    return (np.float32(1.0) / power).astype(np.float32)
