"""A fast training forward of the Qwen3.5-style hybrid in plain torch: one matrix product per input, chunked delta rule.

Numerically equal to transformers' Qwen3_5ForCausalLM on the same weights (tests/bundled/test_model.py); `to_published`
gives the weights under the published names. Knows no tokenizer and no data.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from training import fused
from training.delta_rule import gated_delta_rule
from training.shape import Shape


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class Norm(nn.Module):
    """RMSNorm whose stored weight is the distance from one, as published."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight + 1.0, self.eps)


def short_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Causal depthwise convolution then SiLU. x: [B, T, C], weight: [C, W]; the last column meets the newest token."""
    width = weight.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    length = x.shape[1]
    out = x * weight[:, width - 1]
    for w in range(width - 1):
        out = torch.addcmul(out, padded[:, w : w + length], weight[:, w])
    return F.silu(out)


class DeltaNet(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.widths = [s.conv_dim, s.value_heads * s.value_dim, s.value_heads, s.value_heads]
        self.in_proj = nn.Parameter(torch.empty(sum(self.widths), s.hidden))  # rows: q | k | v | z | b | a
        self.conv = nn.Parameter(torch.empty(s.conv_dim, s.conv_width))
        # Slow decay at first: facts stay readable over hundreds of tokens; some heads forget within a line.
        self.a_log = nn.Parameter(torch.linspace(math.log(0.02), math.log(4.0), s.value_heads))
        self.dt_bias = nn.Parameter(torch.full((s.value_heads,), -1.0))
        self.norm = nn.Parameter(torch.ones(s.value_dim))
        self.out_proj = nn.Parameter(torch.empty(s.hidden, s.value_heads * s.value_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.s
        batch, length, _ = x.shape
        projected = F.linear(x, self.in_proj)
        if fused.available(s):
            y = fused.DeltaCore.apply(projected, self.conv, self.a_log.exp(), self.dt_bias, self.norm, s)
            return F.linear(y, self.out_proj)
        mixed, z, b, a = projected.split(self.widths, dim=-1)
        mixed = short_convolution(mixed, self.conv)
        keys = s.key_heads * s.key_dim
        q, k, v = mixed.split([keys, keys, s.value_heads * s.value_dim], dim=-1)
        q = q.view(batch, length, s.key_heads, s.key_dim)
        k = k.view(batch, length, s.key_heads, s.key_dim)
        v = v.view(batch, length, s.value_heads, s.value_dim)
        q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6) * s.key_dim**-0.5
        k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
        g = -self.a_log.exp() * F.softplus(a + self.dt_bias)
        o = gated_delta_rule(q, k, v, g, b.sigmoid())
        o = rms_norm(o, self.norm, s.eps) * F.silu(z.reshape(o.shape))
        return F.linear(o.reshape(batch, length, -1), self.out_proj)


class Attention(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.widths = [s.heads * s.head_dim * 2, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim]
        self.in_proj = nn.Parameter(torch.empty(sum(self.widths), s.hidden))  # rows: per head q | gate, then k | v
        self.q_norm = Norm(s.head_dim, s.eps)
        self.k_norm = Norm(s.head_dim, s.eps)
        self.out_proj = nn.Parameter(torch.empty(s.hidden, s.heads * s.head_dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s = self.s
        batch, length, _ = x.shape
        q, k, v = F.linear(x, self.in_proj).split(self.widths, dim=-1)
        q, gate = q.view(batch, length, s.heads, 2 * s.head_dim).chunk(2, dim=-1)
        k = self.k_norm(k.view(batch, length, s.kv_heads, s.head_dim))
        v = v.view(batch, length, s.kv_heads, s.head_dim).transpose(1, 2)
        q = rotate(self.q_norm(q), cos, sin).transpose(1, 2)
        k = rotate(k, cos, sin).transpose(1, 2)
        groups = s.heads // s.kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return F.linear((o * gate.sigmoid()).reshape(batch, length, -1), self.out_proj)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first dims. x: [B, T, H, D]; cos, sin: [T, 1, R/2]."""
    half = cos.shape[-1]
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


class Mlp(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.gate_up = nn.Parameter(torch.empty(2 * s.intermediate, s.hidden))
        self.down = nn.Parameter(torch.empty(s.hidden, s.intermediate))

    def forward(self, x: Tensor) -> Tensor:
        if fused.available(self.s):
            return F.linear(fused.SwiGlu.apply(F.linear(x, self.gate_up), self.s), self.down)
        gate, up = F.linear(x, self.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down)


class Block(nn.Module):
    def __init__(self, s: Shape, attention: bool) -> None:
        super().__init__()
        self.input_norm = Norm(s.hidden, s.eps)
        self.mixer: nn.Module = Attention(s) if attention else DeltaNet(s)
        self.post_norm = Norm(s.hidden, s.eps)
        self.mlp = Mlp(s)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.mixer(self.input_norm(x), cos, sin)
        return x + self.mlp(self.post_norm(x))


class Model(nn.Module):
    def __init__(self, s: Shape) -> None:
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.empty(s.vocab, s.hidden))
        self.blocks = nn.ModuleList([Block(s, s.is_attention(i)) for i in range(s.layers)])
        self.norm = Norm(s.hidden, s.eps)
        frequency = s.rope_theta ** (-torch.arange(0, s.rotary_dim, 2, dtype=torch.float32) / s.rotary_dim)
        angles = torch.arange(s.max_positions, dtype=torch.float32)[:, None] * frequency
        self.register_buffer("cos", angles.cos()[:, None, :], persistent=False)
        self.register_buffer("sin", angles.sin()[:, None, :], persistent=False)
        self.reset()

    def reset(self) -> None:
        nn.init.normal_(self.embed, std=0.05)
        for name, p in self.blocks.named_parameters():
            if p.dim() < 2:
                continue
            if name.endswith(".conv"):
                # Begin near "this token, a little of its neighbours": bindings between neighbours form sooner.
                nn.init.normal_(p, std=0.2)
                with torch.no_grad():
                    p[:, -1] += 0.7
            else:
                scale = 1.0 / math.sqrt(2 * self.s.layers) if name.endswith((".out_proj", ".down")) else 1.0
                nn.init.normal_(p, std=scale / math.sqrt(p.shape[1]))

    def hidden(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.embed)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self.norm(hidden), self.embed)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))

    def to_published(self) -> dict[str, Tensor]:
        """The weights under the names of the published checkpoints (tied embeddings: no lm_head)."""
        return {name: tensor.contiguous() for name, tensor in self._published_views().items()}

    def _published_views(self) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm.weight}
        for i, block in enumerate(self.blocks):
            p = f"model.layers.{i}."
            out[p + "input_layernorm.weight"] = block.input_norm.weight
            out[p + "post_attention_layernorm.weight"] = block.post_norm.weight
            gate, up = block.mlp.gate_up.chunk(2)
            out[p + "mlp.gate_proj.weight"], out[p + "mlp.up_proj.weight"] = gate, up
            out[p + "mlp.down_proj.weight"] = block.mlp.down
            mixer: Any = block.mixer
            parts = mixer.in_proj.split(mixer.widths)
            if isinstance(mixer, Attention):
                p += "self_attn."
                names = ("q_proj", "k_proj", "v_proj")
                out[p + "q_norm.weight"], out[p + "k_norm.weight"] = mixer.q_norm.weight, mixer.k_norm.weight
                out[p + "o_proj.weight"] = mixer.out_proj
            else:
                p += "linear_attn."
                names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
                out[p + "conv1d.weight"] = mixer.conv.unsqueeze(1)
                out[p + "A_log"], out[p + "dt_bias"] = mixer.a_log, mixer.dt_bias
                out[p + "norm.weight"], out[p + "out_proj.weight"] = mixer.norm, mixer.out_proj
            for name, part in zip(names, parts, strict=True):
                out[f"{p}{name}.weight"] = part
        return {name: tensor.detach() for name, tensor in out.items()}

    @torch.no_grad()
    def load_published(self, weights: dict[str, Tensor]) -> None:
        """The inverse of `to_published`."""
        for name, view in self._published_views().items():
            view.copy_(weights[name])
