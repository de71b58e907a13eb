"""What the rest of the engine may know of a loaded model: sizes, identity, things worth saying."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PAGE_TOKENS = 16
# Tokens of a recurrent layer that may wait beside its state: kernels/csrc/delta.inl.
WAITING_TOKENS = 7


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """`page_elems` and `slot_floats` are over all layers of their kind; `fingerprint` salts every cached state."""

    architecture: str
    vocab_size: int
    hidden_size: int
    max_model_len: int
    dtype: str
    kv_dtype: str
    num_attention_layers: int
    page_elems: int
    num_recurrent_layers: int
    slot_floats: int
    weight_bytes: int
    eos_token_ids: tuple[int, ...]
    fingerprint: str
    notices: list[str] = field(default_factory=list)

    @property
    def page_bytes(self) -> int:
        return self.page_elems * (2 if self.kv_dtype == "bfloat16" else 4)

    @property
    def slot_bytes(self) -> int:
        return self.slot_floats * 4


class Model(Protocol):
    """A loaded model. `forward` runs a flat batch and updates the arena; `logits` is run on the rows that need it."""

    @property
    def spec(self) -> ModelSpec: ...

    def forward(
        self, batch: Any, token_ids: NDArray[np.int32], positions: NDArray[np.int32], arena: Any
    ) -> NDArray[np.float32]:
        """For each token what `logits` needs, a view of scratch memory, valid until the next forward: the residual
        stream before the last layer's output product, and the product's input. What follows touches no state and no
        other row, so `logits` does it, for the rows that it is asked for.
        """
        ...

    def logits(self, hidden_rows: NDArray[np.float32]) -> NDArray[np.float32]: ...
