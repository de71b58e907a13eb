"""How much a model must multiply and read for a token: what turns the machine's limits into tokens a second."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from statemark.models.config import read_config
from statemark.models.qwen3_5 import EMBEDDING, HEAD, expected_tensors


@dataclass(frozen=True)
class Work:
    """Linear layers only: attention and recurrent layers come on top, so no engine can pass the limits made of this."""

    layer_parameters: int
    head_parameters: int
    decode_bytes: float  # of weights that one step reads, whatever the number of streams

    @property
    def prefill_flops(self) -> float:
        """Operations for each prompt token. The head runs for the last token only and is left out."""
        return 2.0 * self.layer_parameters

    @property
    def decode_flops(self) -> float:
        """Operations for each generated token."""
        return 2.0 * (self.layer_parameters + self.head_parameters)

    def prefill_limit(self, product_rate: float) -> float:
        """Tokens a second that the products allow."""
        return product_rate / self.prefill_flops

    def decode_limit(self, product_rate: float, read_rate: float, streams: int) -> float:
        """Tokens a second of all streams together that reading the weights, or multiplying, allows."""
        step_seconds = max(self.decode_bytes / read_rate, streams * self.decode_flops / product_rate)
        return streams / step_seconds


def work_of(folder: Path, weight_bytes: int) -> Work:
    """`weight_bytes`: of all matrices as they are packed."""
    shapes = expected_tensors(read_config(folder))
    matrices = {name: math.prod(shape) for name, shape in shapes.items() if len(shape) == 2}
    embedding = matrices.pop(EMBEDDING, 0)
    # A tied model has no head of its own: the embedding is read as one.
    head = matrices.pop(HEAD, embedding)
    layers, everything = sum(matrices.values()), sum(math.prod(s) for s in shapes.values() if len(s) == 2)
    return Work(layers, head, weight_bytes * (layers + head) / everything)
