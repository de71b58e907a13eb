"""The engine: requests in, one step at a time, tokens out. Owns the order of things within a step:

    schedule -> run -> check stamps and publish marks -> sample -> append or finish

Nothing of a step is visible to another request before the step has run (publish comes after run), and a step that
fails publishes nothing.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from typing import Any

import numpy as np

from statemark.cache import Budget, CacheManager
from statemark.engine.disk import DiskOptions, open_tier
from statemark.engine.drafts import DraftPace
from statemark.engine.executor import Executor
from statemark.engine.limits import check_options, check_request, fit_length
from statemark.engine.request import EngineRequest, StepOutput, TokenLogprobs
from statemark.engine.sampler import SampledToken, Sampler, SamplerState
from statemark.engine.scheduler import Scheduler
from statemark.engine.sequence import Chunk, Sequence, StepPlan
from statemark.errors import IntegrityError, InvalidRequestError

logger = logging.getLogger(__name__)

_MAX_FAILURES = 2  # steps that a sequence may fail in company before it is given up
_PROMPT_ROWS = 64  # prompt rows whose logits are held at once
# Rows of a step, newest tokens and drafts together, up to which drafts are added: with more, a step costs about as much
# more as it has rows more, and a wrong draft is paid for in full.
_DRAFT_ROWS = 8


class Engine:
    """Continuous batching over one executor.

    `max_num_batched_tokens`: tokens computed in a step, at least `max_num_seqs`. `cache_bytes`: pages and states of
    running sequences and of the prefix cache together. `max_model_len` None means what model and cache can hold.
    `disk`: where marks are kept beyond memory and this process. `num_speculative_tokens`: tokens drafted for a request
    in a step at most (drafts.py); 0 turns drafting off.
    """

    def __init__(
        self,
        executor: Executor,
        sampler: Sampler,
        *,
        max_num_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        cache_bytes: int,
        enable_prefix_caching: bool = True,
        max_model_len: int | None = None,
        disk: DiskOptions | None = None,
        num_speculative_tokens: int = 0,
    ) -> None:
        check_options(max_num_batched_tokens, max_num_seqs, cache_bytes, num_speculative_tokens)
        self.executor = executor
        self.max_num_seqs = max_num_seqs
        self.notices: list[str] = []
        self.max_model_len = fit_length(executor, cache_bytes, max_model_len, self.notices)
        budget = Budget(
            cache_bytes,
            page_bytes=executor.page_bytes,
            slot_bytes=executor.slot_bytes,
            release_page=executor.release_page,
            release_slot=executor.release_slot,
        )
        executor.allocate(budget.pages.capacity, budget.slots.capacity)
        self.cache = CacheManager(budget, executor.fingerprint, enabled=enable_prefix_caching)
        self.disk = None if disk is None else open_tier(disk, executor, self.cache, self.notices)
        self.scheduler = Scheduler(
            self.cache,
            executor.stamps,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_draft_rows=max(_DRAFT_ROWS, 1 + num_speculative_tokens),
        )
        self._drafts = num_speculative_tokens
        self._sampler = sampler
        self._live: dict[str, dict[int, Sequence]] = {}
        self._later: dict[str, list[Sequence]] = {}  # choices that wait for the first one's prefill
        self._prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}
        self._arrivals = 0
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_cached = 0
        self._counters: Counter[str] = Counter(drafts=0, draft_tokens=0, draft_tokens_accepted=0)

    # --- requests -------------------------------------------------------------------------------------------

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request. Raises InvalidRequestError, with the numbers, for one that can't be served."""
        if request.request_id in self._live:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use", param="request_id")
        check_request(request, self.executor.vocab_size, self.max_model_len)
        params = request.params
        seed = params.seed if params.seed is not None else secrets.randbits(63)
        limit = self.max_model_len
        if params.max_tokens is not None:
            limit = min(limit, len(request.prompt_token_ids) + params.max_tokens)
        seqs = []
        for index in range(params.n):
            state = SamplerState(
                params=params,
                seed=seed,
                prompt_token_ids=request.prompt_token_ids,
                eos_token_ids=request.eos_token_ids,
                choice_index=index,
                matching=None if request.constraint is None else request.constraint.start(request.free_until),
            )
            pace = DraftPace(self._drafts) if self._drafts else None
            seqs.append(Sequence(request, index, self._arrivals, limit, state, pace))
            self._arrivals += 1
        self._live[request.request_id] = {s.index: s for s in seqs}
        if len(seqs) > 1:
            self._later[request.request_id] = seqs[1:]
        self.scheduler.add(seqs[0])

    def abort(self, request_id: str) -> None:
        """Drop a request at once. What it has computed stays in the cache, so a retry goes on from there."""
        for seq in self._live.pop(request_id, {}).values():
            self.scheduler.close(seq, "end")
        self._forget(request_id)

    def finish(self, request_id: str, index: int) -> None:
        """End one choice as stopped (a front end saw a stop string) and keep its state."""
        seq = self._live.get(request_id, {}).get(index)
        if seq is not None:
            self._end(seq)

    def has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def stats(self) -> dict[str, Any]:
        """Counters and gauges, by name; bytes in bytes, tokens in tokens."""
        budget = self.cache.budget
        return {
            "steps": self.steps,
            "requests_running": len(self.scheduler.running),
            "requests_waiting": len(self.scheduler.waiting) + sum(map(len, self._later.values())),
            "prompt_tokens_cached": self.tokens_cached,
            "tokens_computed": self.tokens_computed,
            "cache_bytes": budget.total,
            "cache_used_bytes": budget.used_bytes,
            "pages_used": budget.pages.used,
            "slots_used": budget.slots.used,
            "marks": len(self.cache.index),
            "page_bytes": budget.pages.item_bytes,
            "slot_bytes": budget.slots.item_bytes,
            **self._counters,
            **self.scheduler.counters,
            **self.cache.counters,
            **(self.disk.stats() if self.disk is not None else {}),
        }

    def close(self, seconds: float = 10.0) -> None:
        """Nothing will be asked any more: write to disk what isn't there yet, for so long at most."""
        if self.disk is not None:
            self.disk.close(seconds)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless pages, slots and marks are held by exactly those who should hold them."""
        self.cache.check_integrity([s.lease for s in self.scheduler.running if s.lease is not None])

    # --- a step ---------------------------------------------------------------------------------------------

    def step(self) -> list[StepOutput]:
        """One step: compute at most max_num_batched_tokens tokens, return the news of each request that has some."""
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return []
        begun = time.perf_counter()
        for chunk in plan.chunks:
            if chunk.seq.begun is None:
                chunk.seq.begun = begun
        try:
            self.executor.run(plan)
        except Exception as error:
            return self._step_failed(plan, error)
        if self.disk is not None:
            self.disk.pace.step(plan.tokens, len(plan.chunks), time.perf_counter() - begun)
        self.steps += 1
        self.tokens_computed += plan.tokens - plan.drafts
        outputs: list[StepOutput] = []
        ready: list[tuple[Chunk, int]] = []
        row = 0
        for chunk in plan.chunks:
            try:
                self._commit(chunk, row)
            except IntegrityError as error:
                outputs += self._fail(chunk.seq, error)
            else:
                if chunk.samples:
                    ready.append((chunk, row + chunk.known - chunk.start - 1))
            row += chunk.count
        if ready:
            outputs += self._sample(ready)
        if self.disk is not None and not self.has_work():
            self.disk.idle()
        return outputs

    def _commit(self, chunk: Chunk, row: int) -> None:
        """The step has run: move the sequence on, publish its marks, keep its prompt's log-probabilities."""
        seq, lease = chunk.seq, chunk.seq.lease
        assert lease is not None
        self.cache.started(lease)
        pending = list(chunk.marks)
        try:
            while pending:
                offset, slot, kind = pending[0]
                stamps = self.executor.stamps(slot)
                self.cache.publish(lease, seq.tokens, chunk.start + offset, slot, stamps, kind)
                pending.pop(0)
        finally:
            for _, slot, _ in pending:
                self.cache.drop_slot(slot)
        lease.advance(seq.tokens, chunk.known)
        seq.computed = chunk.known
        if seq.request.params.prompt_logprobs is not None and seq.index == 0:
            self._keep_prompt_logprobs(chunk, row)

    def _keep_prompt_logprobs(self, chunk: Chunk, row: int) -> None:
        """Row i of the prompt predicts token i + 1; the first token has no prediction."""
        seq = chunk.seq
        kept = self._prompt_logprobs.setdefault(seq.request.request_id, [None])
        last = min(chunk.end, seq.prompt_len - 1)
        for start in range(max(chunk.start, len(kept) - 1), last, _PROMPT_ROWS):
            stop = min(start + _PROMPT_ROWS, last)
            logits = self.executor.logits(range(row + start - chunk.start, row + stop - chunk.start))
            targets = seq.tokens[start + 1 : stop + 1]
            kept.extend(self._sampler.prompt_logprobs(logits, targets, seq.request.params.prompt_logprobs or 0))

    def _sample(self, ready: list[tuple[Chunk, int]]) -> list[StepOutput]:
        """The next token of each chunk from its row, and one more from each row after it whose draft it equals."""
        rows = [row + i for chunk, row in ready for i in range(chunk.drafts + 1)]
        logits = self.executor.logits(rows)
        news = {chunk.seq: self._news(chunk.seq) for chunk, _ in ready}
        at = dict(zip(news, np.cumsum([0, *(c.drafts + 1 for c, _ in ready[:-1])]).tolist(), strict=True))
        going = [chunk for chunk, _ in ready]
        outputs: list[StepOutput] = []
        depth = 0
        while going:
            seqs = [c.seq for c in going]
            # Drafts are rare: without them every row is there, in order, and no copy is made.
            part = logits if len(seqs) == len(logits) else logits[[at[s] + depth for s in seqs]]
            sampled = self._sampler.sample(part, [s.sampler for s in seqs])
            on = []
            for chunk, choice in zip(going, sampled, strict=True):
                if choice.error is not None:
                    given = news.pop(chunk.seq)
                    outputs += [given] if given.new_token_ids else []
                    outputs += self._fail(chunk.seq, RuntimeError(choice.error))
                elif self._take(chunk, choice, depth, news[chunk.seq]):
                    on.append(chunk)
            going, depth = on, depth + 1
        for chunk, _ in ready:
            if (output := news.get(chunk.seq)) is not None:
                self._settle(chunk, output)
                outputs.append(output)
        return outputs

    def _take(self, chunk: Chunk, choice: SampledToken, depth: int, output: StepOutput) -> bool:
        """Append a token; whether the step has computed what comes after it."""
        seq = chunk.seq
        right = depth < chunk.drafts and choice.token_id == chunk.tokens[depth - chunk.drafts]
        chunk.accepted += right
        seq.append(choice.token_id)
        output.new_token_ids.append(choice.token_id)
        if choice.logprobs is not None:
            output.new_logprobs = [*(output.new_logprobs or ()), choice.logprobs]
        output.finish_reason, output.stop_token_id = self._reason(seq, choice.token_id)
        return right and output.finish_reason is None

    def _settle(self, chunk: Chunk, output: StepOutput) -> None:
        """All tokens of this step are known: the first output's facts, the state to go on from, the end."""
        seq = chunk.seq
        first = seq.generated == len(output.new_token_ids)
        seq.failures = 0
        if first:
            output.lookup = seq.explanation
            output.prompt_logprobs = self._prompt_logprobs.pop(seq.request.request_id, None)
            if seq.request.params.prompt_logprobs is not None and output.prompt_logprobs is None and not seq.index:
                output.prompt_logprobs = [None]  # a prompt of one token has nothing to predict
            if seq.index == 0:
                self.tokens_cached += seq.cached or 0
                self.scheduler.add_first(self._later.pop(seq.request.request_id, []))
        if chunk.drafts:
            self._counters["drafts"] += 1
            self._counters["draft_tokens"] += chunk.drafts
            self._counters["draft_tokens_accepted"] += chunk.accepted
            seq.settle(chunk)
        if output.finish_reason is not None:
            self._end(seq)

    def _reason(self, seq: Sequence, token: int) -> tuple[str | None, int | None]:
        params = seq.request.params
        if seq.generated >= params.min_tokens:
            if token in seq.request.eos_token_ids and not params.ignore_eos:
                return "stop", token
            if token in params.stop_token_ids:
                return "stop", token
        if seq.sampler.ended:
            return "stop", None
        if seq.length >= seq.limit:
            return "length", None
        return None, None

    # --- ends -----------------------------------------------------------------------------------------------

    def _news(self, seq: Sequence) -> StepOutput:
        return StepOutput(seq.request.request_id, seq.index, num_cached_tokens=seq.cached or 0, begun=seq.begun)

    def _end(self, seq: Sequence) -> None:
        self.scheduler.close(seq, "end")
        live = self._live.get(seq.request.request_id, {})
        live.pop(seq.index, None)
        if not live:
            self._live.pop(seq.request.request_id, None)
            self._forget(seq.request.request_id)

    def _forget(self, request_id: str) -> None:
        self._later.pop(request_id, None)
        self._prompt_logprobs.pop(request_id, None)

    def _fail(self, seq: Sequence, error: Exception) -> list[StepOutput]:
        """End one sequence with an error, and choices that waited for its prefill: they would fail in the same way.

        The state may be wrong, so nothing of it is kept.
        """
        request_id = seq.request.request_id
        logger.error("request %s failed: %s", request_id, error)
        if isinstance(error, IntegrityError):
            self.cache.counters["integrity_errors"] += 1
        self.scheduler.close(seq, None)
        live = self._live.get(request_id, {})
        outputs = []
        for ended in (seq, *self._later.pop(request_id, [])):
            live.pop(ended.index, None)
            output = self._news(ended)
            output.finish_reason, output.error = "error", str(error)
            outputs.append(output)
        if not live:
            self._live.pop(request_id, None)
            self._forget(request_id)
        return outputs

    def _step_failed(self, plan: StepPlan, error: Exception) -> list[StepOutput]:
        """A step raised: states may be half written, so all of it is dropped and computed again, one by one.

        A sequence that fails alone is the one at fault; the others lose time and nothing else. If what it resumed from
        is not what it should be, that mark goes and the sequence is computed without it.
        """
        for chunk in plan.chunks:
            for _, slot, _ in chunk.marks:
                self.cache.drop_slot(slot)
        seqs = [c.seq for c in plan.chunks]
        if len(seqs) == 1:
            source = seqs[0].lease.source if seqs[0].lease is not None else None
            if not isinstance(error, IntegrityError) or source is None:
                return self._fail(seqs[0], error)
            logger.error("the mark at %d is damaged and was dropped: %s", source.position, error)
            self._requeue(seqs[0])
            self.cache.discard(source)
            return []
        logger.error("a step over %d requests failed and is repeated one by one: %s", len(seqs), error)
        outputs = []
        for seq in reversed(seqs):
            seq.failures += 1
            if seq.failures > _MAX_FAILURES:
                outputs += self._fail(seq, error)
                continue
            self._requeue(seq)
        return outputs

    def _requeue(self, seq: Sequence) -> None:
        self.scheduler.close(seq, None)
        seq.computed = 0
        seq.cached = None if seq.generated == 0 else seq.cached
        self.scheduler.waiting.appendleft(seq)
