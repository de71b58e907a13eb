"""Rules side by side: one trace, one model, every rule at every budget, and what an operator wants to know of each.

Puts backends, server and figures together; owns no rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from statemark.align import RULES, Setup, frame_of, make_rule
from statemark.align.kv_bytes import token_bytes
from statemark.align.states import StateDtypes, state_bytes
from statemark.cache import PAGE_TOKENS
from statemark.errors import ConfigurationError
from statemark.simulate.align_backend import AlignBackend
from statemark.simulate.backend import Backend
from statemark.simulate.cost import Cost
from statemark.simulate.formats import Trace
from statemark.simulate.marks_backend import EndlessBackend, MarksBackend
from statemark.simulate.server import Limits, Outcome, Server
from statemark.simulate.slot_server import SlotServer
from statemark.simulate.slots import SlotCache, SlotFlags

ENGINE = "statemark"
LLAMA = "llama.cpp"
ALL_RULES = (*RULES, ENGINE, LLAMA)
DEFAULT_SLOTS = SlotFlags()
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Load:
    """How the trace is sent: at its own times, `speed` times as fast, or always `together` requests at once."""

    speed: float = 1.0
    together: int | None = None


@dataclass(frozen=True)
class Result:
    """One rule at one budget. Times are seconds of virtual time, None where no request came to an end.

    `per_p90`: 1 / P90 of (end-to-end seconds / tokens answered), over requests. `never`: requests that the server never
    got to run; `refused`: too long for it. `wrong`: prompts that went on from a state of another position.
    """

    rule: str
    budget: int
    requests: int
    hit_rate: float
    computed: int
    steps: int
    preempted: int
    waits: int
    refused: int
    never: int
    wrong: int
    seconds: float
    ttft: tuple[float, ...] | None
    whole: tuple[float, ...] | None
    per_p90: float | None

    def as_json(self) -> dict[str, Any]:
        values = asdict(self)
        for name in ("ttft", "whole"):
            found = values.pop(name)
            values[name] = None if found is None else {f"p{p}": v for p, v in zip(PERCENTILES, found, strict=True)}
        return values


def simulate(
    trace: Trace,
    setup: Setup,
    rule: str,
    budget: int,
    cost: Cost,
    load: Load,
    *,
    blocks: int | None = None,
    accepted: float = 0.0,
    slots: SlotFlags = DEFAULT_SLOTS,
    progress: Callable[[int], None] | None = None,
) -> tuple[Result, Outcome]:
    """`blocks`: the pool of one rank, None without limit. `accepted`: drafts that hold, of each decode step's. `slots`:
    llama-server's flags, where that is the rule."""
    if rule == LLAMA:
        outcome = _slot_server(setup, budget, slots, cost, load).run(trace.requests, progress)
        return _result(trace, rule, budget, None, outcome), outcome
    backend, limits = _server_of(setup, rule, budget, blocks, accepted)
    server = Server(backend, cost, limits, speed=load.speed, together=load.together)
    outcome = server.run(trace.requests, progress)
    return _result(trace, rule, budget, backend, outcome), outcome


def _server_of(setup: Setup, rule: str, budget: int, blocks: int | None, accepted: float) -> tuple[Backend, Limits]:
    geometry, drafting = setup.geometry, setup.geometry.drafting
    requests = setup.budget.requests
    if setup.flags.max_num_seqs is None:
        requests = min(requests, budget)
    if budget < requests and budget != setup.budget.tokens:
        raise ConfigurationError(
            f"a budget of {budget} is below max_num_seqs ({requests}): vLLM refuses to start",
            hint="raise --budget or lower --max-num-seqs",
        )
    limits = Limits(
        step=budget,
        requests=requests,
        slots=drafting.slots,
        width=1 + drafting.depth,
        pace=1.0 + min(accepted, float(drafting.depth)),
        long_prefill=setup.budget.long_prefill_threshold,
        longest=geometry.max_model_len,
    )
    if rule == ENGINE:
        attention = sum(
            g.content_bytes * g.total / g.tokens for g in geometry.cacheable if g not in geometry.state_groups
        )
        page, slot = max(1, round(PAGE_TOKENS * attention)), geometry.state_bytes
        backend: Backend = EndlessBackend(page, slot)
        if blocks is not None:
            backend = MarksBackend(page, slot, blocks * geometry.bytes_per_block)
        return backend, replace(limits, slots=0, width=1, pace=1.0, long_prefill=0)
    frame = frame_of(
        geometry,
        replace(setup.budget, tokens=budget, scheduled=budget),
        retention=setup.flags.retention_interval,
        junction_checkpoint=setup.flags.junction_checkpoint,
    )
    return AlignBackend(geometry, frame, make_rule(rule, frame), blocks), limits


def _slot_server(setup: Setup, budget: int, flags: SlotFlags, cost: Cost, load: Load) -> SlotServer:
    """llama-server on this model: the budget is its batch, keys and values have 16 bits, states are float32. Neither
    drafts nor several devices."""
    shape, longest = setup.shape, setup.geometry.max_model_len
    attention = token_bytes(shape.attention, "float16", shape.dtype, 1) * shape.attention_layers
    whole = StateDtypes("float32", "float32")
    state = sum(r.layers * state_bytes(r.kind.tensors(1, 0, whole)) for r in shape.recurrent)
    context = longest if flags.unified else longest * flags.parallel
    cache = SlotCache(flags, budget, attention, state, context)
    return SlotServer(cache, cost, budget, longest, speed=load.speed, together=load.together)


def _result(trace: Trace, rule: str, budget: int, backend: Backend | None, outcome: Outcome) -> Result:
    output = {r.number: r.output for r in trace.requests}
    asked = sum(r.prompt for r in trace.requests if r.number in outcome.hits)
    ended = [outcome.whole[n] / output[n] for n in outcome.whole]
    slow = float(np.percentile(ended, 90)) if ended else 0.0
    return Result(
        rule=rule,
        budget=budget,
        requests=len(trace.requests),
        hit_rate=round(sum(outcome.hits.values()) / asked, 6) if asked else 0.0,
        computed=outcome.computed,
        steps=outcome.steps,
        preempted=outcome.preempted,
        waits=outcome.waits,
        refused=outcome.refused,
        never=outcome.stuck,
        wrong=getattr(backend, "stale_reads", 0),
        seconds=round(outcome.seconds, 3),
        ttft=_percentiles(list(outcome.ttft.values())),
        whole=_percentiles(list(outcome.whole.values())),
        per_p90=round(1 / slow, 4) if slow else None,
    )


def _percentiles(values: Sequence[float]) -> tuple[float, ...] | None:
    if not values:
        return None
    return tuple(round(float(v), 4) for v in np.percentile(values, PERCENTILES))
