"""From rows of logits to tokens. A token depends on (its row, its choice's own history, seed, position, index) only.

Owns the order of the processing steps and the walk over candidates. Must not know requests, batches or the scheduler:
rows are judged one by one, so neither batch mates nor the order of rows can change a token.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from statemark.engine.request import TokenLogprobs
from statemark.engine.sampler_state import SamplerState

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

__all__ = ["SampledToken", "Sampler", "SamplerState", "uniform"]

# Candidates taken from the kernel before the whole row is ordered. 128 hold the drawn token nearly always: a trained
# model seldom leaves more than a hundredth of the mass behind them. A larger top_k takes as many as it needs, up to
# the second number, where sorting the row becomes the cheaper way.
FIRST_CANDIDATES = 128
MOST_CANDIDATES = 1024


class LogprobsRuntime(Protocol):
    """The kernel that sums over a vocabulary in one fixed order."""

    def top_logprobs(self, logits: F32, n: int, targets: I32) -> tuple[I32, F32, F32, I32]: ...


@dataclass(frozen=True)
class SampledToken:
    """One choice's next token, or why there is none (`token_id` is -1 then)."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None


def uniform(seed: int, position: int, index: int) -> float:
    """The random number in [0, 1) with 53 bits that belongs to (seed, position, choice index)."""
    counter = struct.pack("<QQQ", seed & 0xFFFF_FFFF_FFFF_FFFF, position, index)
    return float(int.from_bytes(hashlib.blake2b(counter, digest_size=8).digest(), "little") >> 11) * 2.0**-53


class Sampler:
    """Chooses the next token of each row. Keeps nothing but a scratch buffer between calls."""

    def __init__(self, runtime: LogprobsRuntime) -> None:
        self._runtime = runtime
        self._scratch: F32 = np.empty((0, 0), np.float32)

    def sample(self, logits: F32, states: Sequence[SamplerState]) -> list[SampledToken]:
        """Row r of `logits` f32[R,V] belongs to `states[r]`, which moves on by the token that is returned for it."""
        if len(states) == 0:
            return []
        # argmax only compares, so NumPy's is as exact as a kernel and gives the lowest id of equals. It stops at a NaN,
        # so this one pass also finds the rows that no token may be drawn from.
        best = logits.argmax(axis=1)
        good = np.flatnonzero(np.isfinite(logits[np.arange(len(states)), best])).tolist()
        chosen: dict[int, int] = {}
        greedy = [row for row in good if states[row].greedy]
        chosen.update((row, int(best[row])) for row in greedy if states[row].plain)
        shaped = [row for row in greedy if not states[row].plain]
        drawn = [row for row in good if not states[row].greedy]
        if shaped or drawn:
            work = self._process(logits, shaped + drawn, states)
            if shaped:
                chosen.update(_pick_shaped(work[: len(shaped)], shaped))
            if drawn:
                chosen.update(self._draw(work[len(shaped) :], drawn, states))
        answers = self._answers(logits, states, chosen)
        for state, answer in zip(states, answers, strict=True):
            if answer.error is None:
                state.add(answer.token_id)
        return answers

    def prompt_logprobs(self, logits: F32, targets: Sequence[int] | I32, count: int) -> list[TokenLogprobs]:
        """Rows of a prompt with the tokens that follow each of them; `count` most likely ones beside."""
        return self._logprobs(logits, targets, [count] * len(targets))

    def _logprobs(self, logits: F32, targets: Sequence[int] | I32, counts: Sequence[int]) -> list[TokenLogprobs]:
        """Of raw logits f32[R,V]: those of `targets`, and in row r those of the `counts[r]` most likely tokens."""
        if len(targets) == 0:
            return []
        wanted = min(max([1, *counts]), logits.shape[1])
        found = self._runtime.top_logprobs(logits, wanted, np.asarray(targets, np.int32))
        top_ids, top, own, rank = (array.tolist() for array in found)
        return [
            TokenLogprobs(int(targets[r]), own[r], rank[r], tuple(top_ids[r][:count]), tuple(top[r][:count]))
            for r, count in enumerate(counts)
        ]

    def _answers(self, logits: F32, states: Sequence[SamplerState], chosen: dict[int, int]) -> list[SampledToken]:
        wanted = [row for row in chosen if states[row].params.logprobs is not None and chosen[row] >= 0]
        details: dict[int, TokenLogprobs] = {}
        if wanted:
            rows = logits if wanted == list(range(len(states))) else logits[wanted]
            counts = [states[row].params.logprobs or 0 for row in wanted]
            details = dict(zip(wanted, self._logprobs(rows, [chosen[row] for row in wanted], counts), strict=True))
        answers = []
        for row in range(len(states)):
            if chosen.get(row, -1) < 0:
                answers.append(
                    SampledToken(-1, error=states[row].broken or _why_not(logits[row], banned=row in chosen))
                )
            else:
                answers.append(SampledToken(chosen[row], details.get(row)))
        return answers

    def _process(self, logits: F32, rows: list[int], states: Sequence[SamplerState]) -> F32:
        """Copies of `rows` after bans, bias, penalties and temperature, in that order (vLLM's)."""
        vocab = logits.shape[1]
        if self._scratch.shape[0] < len(rows) or self._scratch.shape[1] != vocab:
            self._scratch = np.empty((len(rows), vocab), np.float32)
        work = self._scratch[: len(rows)]
        for copy, row in zip(work, rows, strict=True):
            state = states[row]
            if state.plain:
                np.divide(logits[row], np.float32(state.params.temperature), out=copy)
                continue
            copy[:] = logits[row]
            state.shape(copy)
            if not state.greedy:
                copy /= np.float32(state.params.temperature)
        return work

    def _draw(self, work: F32, rows: list[int], states: Sequence[SamplerState]) -> dict[int, int]:
        vocab = work.shape[1]
        first = [_first_candidates(states[row].params.top_k, vocab) for row in rows]
        ids, logprobs, _, _ = self._runtime.top_logprobs(work, max(first), np.zeros(len(rows), np.int32))
        result = {}
        for i, row in enumerate(rows):
            # How many candidates a mate asked for must not matter: each row sees its own number of them.
            candidates = ids[i, : first[i]].astype(np.int64)
            result[row] = _walk(work[i], candidates, float(logprobs[i, 0]), states[row])
        return result


def _pick_shaped(work: F32, rows: list[int]) -> dict[int, int]:
    """The likeliest tokens; -1 where all are banned, which a small vocabulary allows."""
    best = work.argmax(axis=1).tolist()
    return {
        row: token if work[i, token] > -np.inf else -1 for i, (row, token) in enumerate(zip(rows, best, strict=True))
    }


def _first_candidates(top_k: int, vocab: int) -> int:
    return min(vocab, top_k if 0 < top_k <= MOST_CANDIDATES else FIRST_CANDIDATES)


def _walk(row: F32, candidates: I64, best_logprob: float, state: SamplerState) -> int:
    """Inverse CDF over the tokens in falling order of likelihood, ties by lower id.

    min-p, top-k and top-p each keep a prefix of that order, so a few candidates usually decide. When they don't, the
    whole row is put in order and walked again.
    """
    params = state.params
    u = uniform(state.seed, state.position, state.index)
    if not np.isfinite(row[candidates[0]]):
        return -1
    # Weights relative to the best token: its logarithm of mass gives the mass of all, without a pass over the row.
    total = float(np.exp(-best_logprob))
    token = _walk_prefix(row, candidates, total, u, state)
    if token is None:
        pure = params.top_p == 1.0 and params.min_p == 0.0 and params.top_k == 0
        token = _walk_prefix(row, _rest_by_id(row, candidates) if pure else _in_order(row), total, u, state)
    assert token is not None  # the whole vocabulary always decides
    return token


def _walk_prefix(row: F32, candidates: I64, total: float, u: float, state: SamplerState) -> int | None:
    """The drawn token, or None if that depends on tokens after `candidates`. `total` is the weight of all tokens."""
    params = state.params
    whole = len(candidates) == len(row)
    values = row[candidates].astype(np.float64)
    weights = np.exp(values - values[0])
    kept = len(weights)
    if params.min_p > 0.0:
        kept = int(np.count_nonzero(weights >= params.min_p))
    if params.top_k:
        kept = min(kept, params.top_k)
    bounded = kept < len(weights) or whole or kept == params.top_k
    limited = params.min_p > 0.0 or params.top_k > 0
    if limited and not bounded:
        return None  # more tokens may pass, and the draw and top-p are shares of all that do
    sums = np.cumsum(weights[:kept])
    mass = float(sums[-1]) if limited or whole else total
    if params.top_p < 1.0:
        last = int(np.searchsorted(sums, params.top_p * mass, side="left"))
        if last >= kept:
            if not bounded:
                return None
            last = kept - 1
        kept, mass = last + 1, float(sums[last])
        bounded = True
    at = int(np.searchsorted(sums[:kept], u * mass, side="right"))
    if at < kept:
        return int(candidates[at])
    if not bounded:
        return None
    # A product that was rounded up can reach the last sum: the last token with any weight takes it.
    return int(candidates[np.flatnonzero(weights[:kept])[-1]])


def _rest_by_id(row: F32, candidates: I64) -> I64:
    """`candidates`, then all others by id: without a filter any fixed order will do, and this one needs no sort."""
    others = np.ones(len(row), np.bool_)
    others[candidates] = False
    return np.concatenate([candidates, np.flatnonzero(others)])


def _in_order(row: F32) -> I64:
    """All ids by falling logit, ties by lower id. Sorts keys that are all different, so any sort gives the same."""
    bits = (row + np.float32(0.0)).view(np.int32).astype(np.int64)  # + 0 makes -0.0 equal to 0.0
    rising = np.where(bits < 0, np.int64(-(2**31)) - bits, bits)
    keys = (-rising << 32) | np.arange(len(row), dtype=np.int64)
    keys.sort()
    return keys & np.int64(0xFFFF_FFFF)


def _why_not(row: F32, *, banned: bool) -> str:
    if banned:
        return "no token is left to choose: min_tokens, logit_bias or the answer's structure bans every one"
    bad = int(len(row) - np.count_nonzero(np.isfinite(row)))
    return f"the model's logits are not finite: {bad} of {len(row)} entries are NaN or infinite"
