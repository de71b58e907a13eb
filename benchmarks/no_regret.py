"""Caching on against off on prompts that never repeat: the price, in processor time, of a cache that doesn't help.

`python benchmarks/no_regret.py --model FOLDER [--tokens 64 512] [--answer 8] [--rounds 8] [--json]`. Both engines take
turns, prompt by prompt with prompts of their own, so that a slow second of the machine meets both; what is printed is
the median over rounds of on / off, with the quartiles beside it. The first round fills the cache and is not counted.

`--running 256` measures instead how much of a decode step of so many requests is scheduler and cache: seconds of the
step, of which the executor and the sampler are the rest. Each of them holds a state in memory.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from statemark.engine.core import Engine
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.text_engine import load_text_engine

_ROUND = 512  # tokens of prompts a round, at least


def seconds(engine: Engine, prompt: tuple[int, ...], answer: int, name: str) -> float:
    """Processor time that this prompt and its answer take."""
    start = time.process_time()
    params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
    turns = (len(prompt) // 3, len(prompt) - 4)
    engine.add_request(EngineRequest(request_id=name, prompt_token_ids=prompt, params=params, turn_positions=turns))
    while engine.has_work():
        engine.step()
    return time.process_time() - start


def measure(engines: dict[bool, Engine], tokens: int, answer: int, rounds: int) -> dict[str, Any]:
    draw = random.Random(tokens)
    vocab = engines[True].executor.vocab_size
    count = -(-_ROUND // tokens)
    published = engines[True].cache.counters["marks_published"]
    ratios = []
    for r in range(rounds + 1):
        taken = {True: 0.0, False: 0.0}
        for i in range(count):
            for on in (True, False) if (r + i) % 2 else (False, True):
                prompt = tuple(draw.randrange(vocab) for _ in range(tokens))
                taken[on] += seconds(engines[on], prompt, answer, f"{tokens}-{r}-{i}")
        if r:
            ratios.append(taken[True] / taken[False])
    published = engines[True].cache.counters["marks_published"] - published
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "tokens": tokens,
        "ratio": round(middle, 4),
        "quartiles": (round(low, 4), round(high, 4)),
        "marks_a_prompt": round(published / count / (rounds + 1), 1),
    }


def decode_share(engine: Engine, running: int, steps: int = 12) -> dict[str, Any]:
    """Medians over decode steps of `running` requests: the whole step, and what is left of it beside the model."""
    draw = random.Random(running)
    vocab = engine.executor.vocab_size
    aside = 0.0

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            nonlocal aside
            begun = time.perf_counter()
            try:
                return call(*args)
            finally:
                aside += time.perf_counter() - begun

        return wrapper

    for owner, name in ((engine.executor, "run"), (engine.executor, "logits"), (engine._sampler, "sample")):
        setattr(owner, name, timed(getattr(owner, name)))
    for i in range(running):
        params = SamplingParams(temperature=0.0, max_tokens=running + steps, ignore_eos=True)
        prompt = tuple(draw.randrange(vocab) for _ in range(16))
        engine.add_request(EngineRequest(request_id=f"r{i}", prompt_token_ids=prompt, params=params))
    while engine.scheduler.waiting or not all(seq.decoding for seq in engine.scheduler.running):
        engine.step()
    whole, rest = [], []
    for _ in range(steps):
        aside, begun = 0.0, time.perf_counter()
        engine.step()
        whole.append(time.perf_counter() - begun)
        rest.append(whole[-1] - aside)
    step, own = statistics.median(whole), statistics.median(rest)
    return {
        "running": running,
        "step_ms": round(step * 1e3, 1),
        "bookkeeping_ms": round(own * 1e3, 2),
        "share": round(own / step, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cache-memory", type=int, default=512 << 20)
    parser.add_argument("--running", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.running:
        engine = load_text_engine(
            options.model, cache_memory=options.cache_memory, max_num_seqs=options.running, max_model_len=2048
        ).engine
        found = decode_share(engine, options.running)
        if options.json:
            print(json.dumps(found, sort_keys=True))
        else:
            print(
                f"{options.running} running: {found['step_ms']} ms a step, {found['bookkeeping_ms']} ms of it "
                f"scheduler and cache, {found['share']:.1%}"
            )
        return
    engines = {
        on: load_text_engine(
            options.model, enable_prefix_caching=on, cache_memory=options.cache_memory, max_model_len=2048
        ).engine
        for on in (True, False)
    }
    for tokens in options.tokens:
        found = measure(engines, tokens, options.answer, options.rounds)
        if options.json:
            print(json.dumps(found, sort_keys=True), flush=True)
        else:
            low, high = found["quartiles"]
            print(
                f"{tokens} tokens, {found['marks_a_prompt']} marks each: on / off {found['ratio']} ({low} to {high})",
                flush=True,
            )


if __name__ == "__main__":
    main()
