"""Qwen3.5 text models: gated attention every few layers, Gated DeltaNet in between.

Owns the architecture: tensor names and shapes, which tensors are fused, layer order, where each layer's state lies.
Knows no files and no scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemark.errors import CheckpointError
from statemark.models.backend import Backend, MatrixLike, RuntimeLike
from statemark.models.config import ATTENTION, TextConfig
from statemark.models.layers import (
    HIDDEN,
    NARROW,
    NORMED,
    WIDE,
    DecoderLayer,
    GatedAttention,
    GatedDeltaNet,
    RmsNorm,
    Step,
    SwigluMlp,
    rope_frequencies,
)
from statemark.models.spec import PAGE_TOKENS, WAITING_TOKENS, ModelSpec
from statemark.models.weights import Weights
from statemark.models.workspace import Workspace

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"

# Layers' states start on cache lines: 16 floats.
_SLOT_STEP = 16


@dataclass(frozen=True)
class Sizes:
    """Widths of fused projections and of the state, from the config."""

    qkv: int
    attention: int
    gdn: int
    values: int
    page_elems: int
    slot_floats: int

    @classmethod
    def of(cls, c: TextConfig) -> Sizes:
        values = c.linear_num_value_heads * c.linear_value_head_dim
        state = values * c.linear_key_head_dim + (c.linear_conv_kernel_dim - 1) * c.conv_dim
        keys = c.linear_num_key_heads * c.linear_key_head_dim
        state += WAITING_TOKENS * (keys + values + c.linear_num_value_heads)
        return cls(
            qkv=2 * (c.num_attention_heads + c.num_key_value_heads) * c.head_dim,
            attention=c.num_attention_heads * c.head_dim,
            gdn=c.conv_dim + values + 2 * c.linear_num_value_heads,
            values=values,
            page_elems=2 * c.num_key_value_heads * c.head_dim * PAGE_TOKENS,
            slot_floats=-(-state // _SLOT_STEP) * _SLOT_STEP,
        )


def expected_tensors(c: TextConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the architecture."""
    h, i, d, sizes = c.hidden_size, c.intermediate_size, c.head_dim, Sizes.of(c)
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (c.vocab_size, h), FINAL_NORM: (h,)}
    for n, kind in enumerate(c.layer_types):
        layer: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (h,),
            "post_attention_layernorm.weight": (h,),
            "mlp.gate_proj.weight": (i, h),
            "mlp.up_proj.weight": (i, h),
            "mlp.down_proj.weight": (h, i),
        }
        if kind == ATTENTION:
            rows = {"q": 2 * sizes.attention, "k": c.num_key_value_heads * d, "v": c.num_key_value_heads * d}
            layer |= {f"self_attn.{p}_proj.weight": (r, h) for p, r in rows.items()}
            layer |= {"self_attn.o_proj.weight": (h, sizes.attention)}
            layer |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
            if c.attention_bias:
                layer |= {f"self_attn.{p}_proj.bias": (r,) for p, r in (*rows.items(), ("o", h))}
        else:
            heads = c.linear_num_value_heads
            layer |= {
                "linear_attn.in_proj_qkv.weight": (c.conv_dim, h),
                "linear_attn.in_proj_z.weight": (sizes.values, h),
                "linear_attn.in_proj_b.weight": (heads, h),
                "linear_attn.in_proj_a.weight": (heads, h),
                "linear_attn.conv1d.weight": (c.conv_dim, 1, c.linear_conv_kernel_dim),
                "linear_attn.dt_bias": (heads,),
                "linear_attn.A_log": (heads,),
                "linear_attn.norm.weight": (c.linear_value_head_dim,),
                "linear_attn.out_proj.weight": (h, sizes.values),
            }
        tensors |= {f"model.layers.{n}.{name}": shape for name, shape in layer.items()}
    if not c.tie_word_embeddings:
        tensors[HEAD] = (c.vocab_size, h)
    return tensors


class Qwen3_5:  # noqa: N801
    """The loaded model. See `spec.Model`."""

    def __init__(
        self,
        config: TextConfig,
        spec: ModelSpec,
        runtime: RuntimeLike,
        layers: list[DecoderLayer],
        embedding: MatrixLike,
        final_norm: RmsNorm,
        head: MatrixLike,
    ) -> None:
        self.config, self.spec = config, spec
        self._runtime, self._layers, self._final_norm = runtime, layers, final_norm
        self._embedding, self._head = embedding, head
        self._inv_freq = rope_frequencies(config.rotary_dim, config.rope_theta)
        sizes = Sizes.of(config)
        self._workspace = Workspace(
            {
                HIDDEN: config.hidden_size + layers[-1].mixer.mixed_width,
                NORMED: config.hidden_size,
                WIDE: max(sizes.qkv, sizes.gdn, 2 * config.intermediate_size),
                NARROW: max(sizes.attention, sizes.values, config.intermediate_size),
            }
        )

    def forward(self, batch: Any, token_ids: I32, positions: I32, arena: Any) -> F32:
        rows = len(token_ids)
        self._workspace.reserve(rows)
        hidden = self._workspace.rows(HIDDEN, rows)
        residual, mixed = np.split(hidden, [self.config.hidden_size], axis=1)
        self._runtime.embed(token_ids, self._embedding, residual)
        cos, sin = self._runtime.rope_tables(positions, self._inv_freq)
        step = Step(self._runtime, self._workspace, batch, arena, cos, sin, rows)
        for layer in self._layers[:-1]:
            layer.run(step, residual)
        self._layers[-1].mix(step, residual, mixed)
        return hidden

    def logits(self, hidden_rows: F32) -> F32:
        rows = len(hidden_rows)
        self._workspace.reserve(rows)
        residual = hidden_rows[:, : self.config.hidden_size].copy()
        self._layers[-1].finish(self._runtime, self._workspace, hidden_rows[:, self.config.hidden_size :], residual)
        normed = self._workspace.rows(NORMED, rows)
        self._final_norm.run(self._runtime, residual, normed)
        out = np.empty((rows, self.config.vocab_size), dtype=np.float32)
        self._runtime.linear(normed, self._head, out)
        return out


@dataclass(frozen=True)
class Parts:
    """Everything that is read from a checkpoint."""

    layers: list[DecoderLayer]
    embedding: MatrixLike
    final_norm: RmsNorm
    head: MatrixLike


class Builder:
    """Asks for fused matrices and vectors, and wires the layers."""

    def __init__(self, config: TextConfig, weights: Weights, backend: Backend) -> None:
        self._c, self._weights, self._backend = config, weights, backend
        self._sizes = Sizes.of(config)
        self._matrix = weights.matrix

    def build(self) -> Parts:
        c, tied = self._c, self._c.tie_word_embeddings
        embedding = self._matrix(EMBEDDING)
        head = embedding if tied else self._matrix(HEAD)
        layers = []
        attention = recurrent = 0
        for n, kind in enumerate(c.layer_types):
            name = f"model.layers.{n}"
            mixer: GatedAttention | GatedDeltaNet
            if kind == ATTENTION:
                mixer, attention = self._attention(f"{name}.self_attn", attention), attention + 1
            else:
                mixer, recurrent = self._gated_delta_net(f"{name}.linear_attn", recurrent), recurrent + 1
            layers.append(
                DecoderLayer(
                    mixer_norm=self._norm(f"{name}.input_layernorm.weight"),
                    mixer=mixer,
                    mlp_norm=self._norm(f"{name}.post_attention_layernorm.weight"),
                    mlp=SwigluMlp(
                        gate_up=self._matrix(f"{name}.mlp.gate_proj.weight", f"{name}.mlp.up_proj.weight"),
                        down=self._matrix(f"{name}.mlp.down_proj.weight"),
                        inner=c.intermediate_size,
                    ),
                )
            )
        return Parts(layers, embedding, self._norm(FINAL_NORM), head)

    def _norm(self, name: str) -> RmsNorm:
        return RmsNorm(np.float32(1.0) + self._weights.vector(name), self._c.rms_norm_eps)

    def _kernel(self, kind: Callable[..., Any], name: str, **facts: Any) -> Any:
        try:
            return kind(**facts)
        except ValueError as error:
            raise CheckpointError(f"{name} has dimensions that no kernel supports: {error}") from error

    def _attention(self, name: str, index: int) -> GatedAttention:
        c, sizes, read = self._c, self._sizes, self._weights.vector
        bias = output_bias = None
        if c.attention_bias:
            bias = np.concatenate([read(f"{name}.{p}_proj.bias") for p in "qkv"])
            output_bias = read(f"{name}.o_proj.bias")
        kernel = self._kernel(
            self._backend.Attention,
            name,
            index=index,
            page_offset=index * sizes.page_elems,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            head_dim=c.head_dim,
            rotary_dim=c.rotary_dim,
            eps=c.rms_norm_eps,
            q_norm=np.float32(1.0) + read(f"{name}.q_norm.weight"),
            k_norm=np.float32(1.0) + read(f"{name}.k_norm.weight"),
        )
        qkv = self._matrix(*(f"{name}.{p}_proj.weight" for p in "qkv"))
        output = self._matrix(f"{name}.o_proj.weight")
        return GatedAttention(qkv, bias, sizes.qkv, kernel, sizes.attention, output, output_bias)

    def _gated_delta_net(self, name: str, index: int) -> GatedDeltaNet:
        c, sizes, read = self._c, self._sizes, self._weights.vector
        kernel = self._kernel(
            self._backend.GatedDeltaNet,
            name,
            index=index,
            slot_offset=index * sizes.slot_floats,
            key_heads=c.linear_num_key_heads,
            value_heads=c.linear_num_value_heads,
            key_dim=c.linear_key_head_dim,
            value_dim=c.linear_value_head_dim,
            conv_width=c.linear_conv_kernel_dim,
            eps=c.rms_norm_eps,
            conv_weight=np.ascontiguousarray(read(f"{name}.conv1d.weight")[:, 0]),
            a_log=read(f"{name}.A_log"),
            dt_bias=read(f"{name}.dt_bias"),
            norm_weight=read(f"{name}.norm.weight"),
        )
        projections = self._matrix(*(f"{name}.in_proj_{p}.weight" for p in ("qkv", "z", "b", "a")))
        output = self._matrix(f"{name}.out_proj.weight")
        return GatedDeltaNet(projections, sizes.gdn, kernel, sizes.values, output)
