"""What the sampler must remember of one choice: its parameters, its seed, and which tokens it has seen how often.

Counts grow by one entry a token, so a long answer costs no more a token than a short one. Knows no logits rows but
the one it is asked to shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from statemark.engine.params import SamplingParams

if TYPE_CHECKING:
    from statemark.engine.structured import Matching

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class TokenCounts:
    """Different token ids with their counts, as arrays that grow in place."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        ids, counts = np.unique(np.fromiter(tokens, np.int64), return_counts=True)
        self._ids: I64 = ids
        self._counts: F32 = counts.astype(np.float32)
        self._slots: dict[int, int] = {token: slot for slot, token in enumerate(ids.tolist())}

    def add(self, token_id: int) -> None:
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            room = max(16, slot)
            self._ids = np.concatenate([self._ids, np.zeros(room, np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(room, np.float32)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    @property
    def ids(self) -> I64:
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> F32:
        return self._counts[: len(self._slots)]


class SamplerState:
    """One choice of one request. `position` is that of the token to come; `add` is called with each one chosen.

    `generated`: tokens that the choice has already taken, when it goes on from elsewhere.
    """

    def __init__(
        self,
        *,
        params: SamplingParams,
        seed: int,
        prompt_token_ids: Sequence[int],
        eos_token_ids: Iterable[int] = (),
        choice_index: int = 0,
        generated: Sequence[int] = (),
        matching: Matching | None = None,
    ) -> None:
        self._matching = matching
        self.params = params
        self.seed = seed
        self.index = choice_index
        self.position = len(prompt_token_ids) + len(generated)
        self._left_before_end = params.min_tokens - len(generated)
        self._ends = np.array(sorted({*eos_token_ids, *params.stop_token_ids}), np.int64)
        bias = params.logit_bias or {}
        self._bias_ids = np.array(list(bias), np.int64)
        self._bias = np.array(list(bias.values()), np.float32)
        self._seen = TokenCounts([*prompt_token_ids, *generated]) if params.repetition_penalty != 1.0 else None
        counted = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._written = TokenCounts(generated) if counted else None
        self._shapes = bool(bias) or self._seen is not None or counted

    def add(self, token_id: int) -> None:
        self.position += 1
        self._left_before_end -= 1
        if self._seen is not None:
            self._seen.add(token_id)
        if self._written is not None:
            self._written.add(token_id)
        if self._matching is not None:
            self._matching.add(token_id)

    @property
    def ended(self) -> bool:
        """The answer's structure is complete: nothing can follow."""
        return self._matching is not None and self._matching.ended

    @property
    def broken(self) -> str | None:
        """Why the answer's structure can't be followed any further."""
        return None if self._matching is None else self._matching.error

    @property
    def greedy(self) -> bool:
        return self.params.greedy

    @property
    def plain(self) -> bool:
        """The next token's logits need no shaping."""
        return self._matching is None and not self._shapes and (self._left_before_end <= 0 or len(self._ends) == 0)

    def shape(self, row: F32) -> None:
        """Bans, bias and penalties on one row, in place, in the order that vLLM applies them."""
        params = self.params
        if self._left_before_end > 0:
            row[self._ends] = -np.inf
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if self._seen is not None:
            penalty = np.float32(params.repetition_penalty)
            values = row[self._seen.ids]
            row[self._seen.ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._written is not None:
            ids = self._written.ids
            row[ids] -= np.float32(params.frequency_penalty) * self._written.counts
            row[ids] -= np.float32(params.presence_penalty)
        allowed = self._matching.allowed() if self._matching is not None else None
        if allowed is not None:
            row[~allowed] = -np.inf
