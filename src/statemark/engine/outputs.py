"""What a finished request looks like to a Python caller. Names and shapes are those that vLLM users know.

Owns the collecting of deltas into one output and the exactness digest. Must not know the engine or the tokenizer.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from statemark.cache import Explanation
from statemark.engine.request import EngineRequest, TokenLogprobs
from statemark.errors import InvalidRequestError

DIGEST_LOGPROBS = 20


@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """News of one choice after one engine step, as text. `text` may lag behind `token_ids`, never the reverse.

    `lookup` comes with the first token: what the prefix cache had for the prompt, None where it wasn't asked. `begun`:
    when the choice's first step began, on the clock of `time.perf_counter`.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    lookup: Explanation | None = None
    begun: float | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Logprob:
    """Natural logarithm of one token's probability at one position, and its place among all tokens from 1."""

    logprob: float
    rank: int
    decoded_token: str


# The most likely tokens in falling order, then the chosen one unless it is among them.
PositionLogprobs = dict[int, Logprob]


@dataclass(kw_only=True)
class CompletionOutput:
    """One of a request's `n` answers.

    `finish_reason`: "stop" (the end token, a stop id or a stop string; `stop_reason` is that id or string, None for
    the end token), "length", "abort" or "error" (`error` says why).
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def digest(self) -> str:
        """SHA-256 over token ids and top-20 log-probabilities, as float32 bits, of each generated token.

        Equal digests mean equal numbers, where equal text means little. Needs `logprobs=20`.
        """
        tops = [list(entry.items())[:DIGEST_LOGPROBS] for entry in self.logprobs or ()]
        if self.logprobs is None or any(not top or top[-1][1].rank != DIGEST_LOGPROBS for top in tops):
            raise InvalidRequestError(
                f"a digest needs the {DIGEST_LOGPROBS} most likely tokens of each position",
                hint=f"ask for logprobs={DIGEST_LOGPROBS}",
                param="logprobs",
            )
        digest = hashlib.sha256()
        for token_id, top in zip(self.token_ids, tops, strict=True):
            digest.update(struct.pack("<I", token_id))
            for other, row in top:
                digest.update(struct.pack("<If", other, row.logprob))
        return digest.hexdigest()


@dataclass
class RequestMetrics:
    """Seconds on a clock that only moves forward; only differences mean anything."""

    arrival: float
    first_token: float | None = None
    finished: float | None = None

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival


@dataclass(kw_only=True)
class RequestOutput:
    """A request with its answers.

    `num_cached_tokens`: tokens of the prompt that were not computed again; `lookup`: why not more, None if the prefix
    cache wasn't asked.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    lookup: Explanation | None = None
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(0.0), compare=False)

    def digest(self) -> str:
        """The digest of the only answer, or one over those of all."""
        if len(self.outputs) == 1:
            return self.outputs[0].digest()
        return hashlib.sha256("".join(output.digest() for output in self.outputs).encode()).hexdigest()


class OutputBuilder:
    """Collects the deltas of one request. `token_text` gives a token's own text, for log-probabilities."""

    def __init__(
        self,
        request: EngineRequest,
        prompt: str | None,
        token_text: Callable[[int], str],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._token_text = token_text
        self._clock = clock
        wanted = request.params.logprobs is not None
        self.output = RequestOutput(
            request_id=request.request_id,
            prompt=prompt,
            prompt_token_ids=list(request.prompt_token_ids),
            outputs=[
                CompletionOutput(
                    index=index,
                    logprobs=[] if wanted else None,
                    cumulative_logprob=0.0 if wanted else None,
                )
                for index in range(request.params.n)
            ],
            metrics=RequestMetrics(clock()),
        )

    def add(self, delta: TextDelta) -> RequestOutput:
        """The output so far; the same object each time, so copy what must not change."""
        whole, choice = self.output, self.output.outputs[delta.index]
        if delta.prompt_logprobs is not None:
            entry = partial(position_logprobs, token_text=self._token_text)
            whole.prompt_logprobs = [None if row is None else entry(row) for row in delta.prompt_logprobs]
        if delta.index == 0:  # later choices share the first one's prefill: that isn't the caller's saving
            whole.num_cached_tokens = delta.num_cached_tokens
            whole.lookup = delta.lookup or whole.lookup
        if delta.token_ids and whole.metrics.first_token is None:
            whole.metrics.first_token = self._clock()
        choice.text += delta.text
        choice.token_ids.extend(delta.token_ids)
        if choice.logprobs is not None and choice.cumulative_logprob is not None:
            for row in delta.logprobs or ():
                choice.logprobs.append(position_logprobs(row, self._token_text))
                choice.cumulative_logprob += row.logprob
        if delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
            choice.error = delta.error
            whole.finished = all(other.finished for other in whole.outputs)
            if whole.finished:
                whole.metrics.finished = self._clock()
        return whole


def position_logprobs(row: TokenLogprobs, token_text: Callable[[int], str]) -> PositionLogprobs:
    """One position as a mapping from token id, in order of rank."""
    found = {
        token_id: Logprob(logprob, rank, token_text(token_id))
        for rank, (token_id, logprob) in enumerate(zip(row.top_ids, row.top_logprobs, strict=True), 1)
    }
    if row.token_id not in found:
        found[row.token_id] = Logprob(row.logprob, row.rank, token_text(row.token_id))
    return found
