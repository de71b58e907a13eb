"""The gated delta rule over whole sequences, chunk by chunk, made of matrix products and differentiable.

Per head and token:  S <- S * exp(g);  S <- S + k (x) (v - k.S) * beta;  o = q.S  (q and k come normalised, q scaled).
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class UnitLowerInverse(torch.autograd.Function):
    """(I + L)^-1 for strictly lower L [.., C, C], by doubling: L is nilpotent, so log2(C) products are exact."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, lower: Tensor) -> Tensor:
        size = lower.shape[-1]
        power = -lower
        eye = torch.eye(size, dtype=lower.dtype)
        inverse = eye + power
        reach = 2
        while reach < size:
            power = power @ power
            inverse = inverse + inverse @ power
            reach *= 2
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        return -(transposed @ grad @ transposed).tril(-1)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = 32) -> Tensor:
    """q, k: [B, T, Hk, Dk]; v: [B, T, Hv, Dv]; g (log decay), beta: [B, T, Hv] -> [B, T, Hv, Dv]."""
    batch, length, heads, value_dim = v.shape
    if k.shape[2] != heads:
        q = q.repeat_interleave(heads // k.shape[2], dim=2)
        k = k.repeat_interleave(heads // k.shape[2], dim=2)
    pad = -length % chunk
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    count = (length + pad) // chunk
    # [N, B*H, C, D]: chunks first, so that the scan below reads one contiguous slice a step.
    q, k, v = (
        x.view(batch, count, chunk, heads, -1).permute(1, 0, 3, 2, 4).reshape(count, batch * heads, chunk, x.shape[-1])
        for x in (q, k, v)
    )
    g, beta = (x.view(batch, count, chunk, heads).permute(1, 0, 3, 2).reshape(count, -1, chunk) for x in (g, beta))

    decay = g.cumsum(-1)
    causal = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    between = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(~causal, float("-inf")).exp()
    from_start = decay.exp().unsqueeze(-1)
    to_end = (decay[..., -1:] - decay).exp().unsqueeze(-1)
    whole = decay[..., -1].exp()[..., None, None]

    k_beta = k * beta.unsqueeze(-1)
    k_t = k.transpose(-1, -2)
    inverse = UnitLowerInverse.apply((k_beta @ k_t * between).tril(-1))
    inner = q @ k_t * between
    new = inverse @ (v * beta.unsqueeze(-1))
    read = inverse @ (k_beta * from_start)
    q = q * from_start
    k_end = (k * to_end).transpose(-1, -2)

    state = v.new_zeros(batch * heads, k.shape[-1], value_dim)
    outputs = []
    for new_i, read_i, q_i, inner_i, k_i, whole_i in zip(
        new.unbind(), read.unbind(), q.unbind(), inner.unbind(), k_end.unbind(), whole.unbind(), strict=True
    ):
        delta = torch.baddbmm(new_i, read_i, state, alpha=-1)
        outputs.append(torch.baddbmm(q_i @ state, inner_i, delta))
        state = torch.baddbmm(state * whole_i, k_i, delta)
    out = torch.stack(outputs).view(count, batch, heads, chunk, value_dim).permute(1, 0, 3, 2, 4)
    return out.reshape(batch, count * chunk, heads, value_dim)[:, :length]
