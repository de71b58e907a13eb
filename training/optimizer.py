"""Muon for the matrices, AdamW for the rest, over tensors that two worker processes share. Knows no model names.

Each worker updates its own half of the parameters from the sum of both workers' gradients, so the orthogonalisation is
split between the cores and no tensor is sent.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Quintic steps towards the nearest orthogonal matrix; coefficients chosen for a steep slope at zero.
STEPS, A, B, C = 4, 3.4445, -4.7750, 2.0315
MOMENTUM = 0.95
BETAS = (0.9, 0.98)


def orthogonalise(x: Tensor) -> Tensor:
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(STEPS):
        gram = x @ x.T
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x.T if tall else x


class Optimizer:
    """state: tensors in shared memory, so that worker 0 can save what worker 1 has accumulated."""

    def __init__(self, parameters: Sequence[tuple[str, Tensor, list[int] | None]]) -> None:
        """Entries: name, parameter, and a matrix's row split (parts are orthogonalised alone) or None for AdamW."""
        self.entries = list(parameters)
        self.first = [torch.zeros_like(p).share_memory_() for _, p, _ in self.entries]
        self.second = [
            torch.zeros(0 if split else p.numel()).view(0 if split else p.shape).share_memory_()
            for _, p, split in self.entries
        ]
        self.grads = [[torch.zeros_like(p).share_memory_() for _, p, _ in self.entries] for _ in range(2)]
        costs = [p.numel() * (min(p.shape) if split else 1) for _, p, split in self.entries]
        self.owner = [0] * len(costs)
        loads = [0, 0]
        for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
            self.owner[i] = loads.index(min(loads))
            loads[self.owner[i]] += costs[i]

    def publish(self, worker: int) -> None:
        for buffer, (_, p, _) in zip(self.grads[worker], self.entries, strict=True):
            assert p.grad is not None
            buffer.copy_(p.grad)
            p.grad = None

    def norm(self) -> float:
        return float(torch.stack([(a + b).norm() for a, b in zip(*self.grads, strict=True)]).norm()) / 2

    @torch.no_grad()
    def step(self, worker: int, step: int, lr: float, clip: float, norm: float, decay: float = 0.01) -> None:
        scale = 0.5 * min(1.0, clip / (norm + 1e-6))
        for i, (_, p, split) in enumerate(self.entries):
            if self.owner[i] != worker:
                continue
            grad = (self.grads[0][i] + self.grads[1][i]) * scale
            first = self.first[i]
            if split:
                first.lerp_(grad, 1 - MOMENTUM)
                update = torch.lerp(grad, first, MOMENTUM)
                p.mul_(1 - lr * decay)
                for part, target in zip(update.split(split), p.split(split), strict=True):
                    # 0.2 * sqrt(larger side) gives the size of step that AdamW would take at the same rate.
                    target.add_(orthogonalise(part), alpha=-lr * 0.2 * max(part.shape) ** 0.5)
            else:
                second = self.second[i]
                first.lerp_(grad, 1 - BETAS[0])
                second.lerp_(grad * grad, 1 - BETAS[1])
                denominator = (second / (1 - BETAS[1] ** step)).sqrt_().add_(1e-8)
                p.addcdiv_(first, denominator, value=-lr / (1 - BETAS[0] ** step))

    def state(self) -> dict[str, list[Tensor]]:
        return {"first": self.first, "second": self.second}

    def load(self, state: dict[str, list[Tensor]]) -> None:
        for mine, saved in ((self.first, state["first"]), (self.second, state["second"])):
            for target, source in zip(mine, saved, strict=True):
                target.copy_(source)
