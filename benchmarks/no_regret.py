"""Caching on against off on prompts that never repeat: the price, in processor time, of a cache that doesn't help.

`python benchmarks/no_regret.py --model FOLDER [--tokens 64 512] [--answer 8] [--rounds 8] [--json]`. Both engines take
turns with prompts of their own, so that a slow minute of the machine meets both; what is printed is the median over
rounds of on / off, with the quartiles beside it. The first round fills the cache and is not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

from statemark.engine.core import Engine
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.text_engine import load_text_engine

_ROUND = 512  # tokens of prompts a round, at least


def seconds(engine: Engine, prompts: list[tuple[int, ...]], answer: int, name: str) -> float:
    """Processor time that these prompts take, one after the other."""
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


def measure(engines: dict[bool, Engine], tokens: int, answer: int, rounds: int) -> dict[str, Any]:
    draw = random.Random(tokens)
    vocab = engines[True].executor.vocab_size
    count = -(-_ROUND // tokens)
    published = engines[True].cache.counters["marks_published"]
    ratios = []
    for r in range(rounds + 1):
        taken = {}
        for on in (True, False) if r % 2 else (False, True):
            prompts = [tuple(draw.randrange(vocab) for _ in range(tokens)) for _ in range(count)]
            taken[on] = seconds(engines[on], prompts, answer, f"{tokens}-{r}-{on}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--answer", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cache-memory", type=int, default=512 << 20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
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
