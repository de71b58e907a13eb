"""What scheduler and cache cost beside the model: processor time of a step's bookkeeping with many running requests.

`python -m statemark.simulate.bookkeeping [--running 256] [--prompt 2000] [--steps 60] [--json]`
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from statemark.engine.core import Engine
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.simulate.executor import SimulatedExecutor
from statemark.simulate.soak import simulated_engine


@dataclass(frozen=True)
class Cost:
    """Medians over decode steps with `running` requests, without executor and sampler; processor time."""

    running: int
    prompt_tokens: int
    steps: int
    step_ms: float
    request_us: float
    admit_ms: float  # of one prompt: lookup, plan, pages, marks
    longest_prompt_ms: float  # of a repeated prompt of 100,000 tokens


class _Aside:
    """Adds up the time spent in calls that are not bookkeeping."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - start

        return timed


def _engine(running: int, longest: int, aside: _Aside) -> Engine:
    executor = SimulatedExecutor()
    engine = simulated_engine(executor, 1 << 42, seqs=running, budget=max(512, running), max_model_len=longest)
    for owner, name in ((executor, "run"), (executor, "logits"), (engine._sampler, "sample")):
        setattr(owner, name, aside.wrap(getattr(owner, name)))
    return engine


def _request(name: str, prompt: range, answer: int) -> EngineRequest:
    ids = tuple((i * 7919 + i // 256) % 256 for i in prompt)
    params = SamplingParams(temperature=0.0, max_tokens=answer)
    return EngineRequest(request_id=name, prompt_token_ids=ids, params=params, turn_positions=(len(ids) - 4,))


def measure(running: int, prompt: int, steps: int) -> Cost:
    """Fill the engine with requests of their own, then time steps in which all of them decode."""
    aside = _Aside()
    engine = _engine(running, 200_000, aside)
    for i in range(running):
        engine.add_request(_request(f"r{i}", range(i * prompt, (i + 1) * prompt), steps + running * prompt))
    while engine.scheduler.waiting or any(not s.decoding for s in engine.scheduler.running):
        engine.step()
    times = []
    for _ in range(steps):
        aside.seconds, start = 0.0, time.process_time()
        engine.step()
        times.append(time.process_time() - start - aside.seconds)
    step = statistics.median(times)
    return Cost(
        running=running,
        prompt_tokens=prompt,
        steps=steps,
        step_ms=round(step * 1e3, 3),
        request_us=round(step / running * 1e6, 2),
        admit_ms=_alone([prompt] * 20),
        longest_prompt_ms=_alone([100_000] * 2, repeated=True),
    )


def _alone(prompts: list[int], *, repeated: bool = False) -> float:
    """All that a prompt of that many tokens costs from its arrival to its end, in milliseconds; the last one's."""
    aside = _Aside()
    engine = _engine(1, 200_000, aside)
    taken = 0.0
    for i, tokens in enumerate(prompts):
        begin = 0 if repeated else i * tokens
        request = _request(f"r{i}", range(begin, begin + tokens), 1)
        aside.seconds, start = 0.0, time.process_time()
        engine.add_request(request)
        while engine.has_work():
            engine.step()
        taken = time.process_time() - start - aside.seconds
    return round(taken * 1e3, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of scheduler and cache in a decode step.")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--prompt", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cost = measure(options.running, options.prompt, options.steps)
    if options.json:
        print(json.dumps(asdict(cost), sort_keys=True))
        return
    print(f"{cost.running} running: {cost.step_ms} ms a step, {cost.request_us} us a request")
    print(f"a new prompt of {cost.prompt_tokens:,} tokens: {cost.admit_ms} ms")
    print(f"a cached prompt of 100,000 tokens: {cost.longest_prompt_ms} ms")


if __name__ == "__main__":
    main()
