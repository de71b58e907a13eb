"""Caching on against off on prompts that never repeat: the price, in processor time, of a cache that doesn't help.

`python benchmarks/no_regret.py --model FOLDER [--prompts 12] [--tokens 512] [--rounds 5]`. Prints the ratio of the
medians, on / off, in rounds that take turns, so that a slow minute of the machine meets both.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.text_engine import load_text_engine


def seconds(engine, prompts: list[tuple[int, ...]], answer: int, name: str) -> float:
    start = time.process_time()
    for i, prompt in enumerate(prompts):
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        turns = (len(prompt) // 3, len(prompt) - 4)
        engine.add_request(
            EngineRequest(request_id=f"{name}-{i}", prompt_token_ids=prompt, params=params, turn_positions=turns)
        )
    while engine.has_work():
        engine.step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache-memory", type=int, default=256 << 20)
    options = parser.parse_args()
    engines = {
        on: load_text_engine(
            options.model, enable_prefix_caching=on, cache_memory=options.cache_memory, max_model_len=2048
        ).engine
        for on in (True, False)
    }
    draw = random.Random(0)
    vocab = engines[True].executor.vocab_size
    times: dict[bool, list[float]] = {True: [], False: []}
    for r in range(options.rounds + 1):
        for on in (True, False) if r % 2 else (False, True):
            prompts = [tuple(draw.randrange(vocab) for _ in range(options.tokens)) for _ in range(options.prompts)]
            taken = seconds(engines[on], prompts, options.answer, f"{r}-{on}")
            if r:  # the first round warms up
                times[on].append(taken)
    medians = {on: statistics.median(values) for on, values in times.items()}
    print(f"on {medians[True]:.3f} s, off {medians[False]:.3f} s, ratio {medians[True] / medians[False]:.4f}")


if __name__ == "__main__":
    main()
