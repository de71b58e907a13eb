"""What the vLLM plugin's cut costs a request and step, on one core.

    python benchmarks/vllm_cut.py [--json]

Times the method that vLLM calls for every request in every step, with its rule, over prompts at random positions with
random offers, and over decode steps. No vLLM is needed: the scheduler around the method is a stand-in with one
attribute. The bound is 20 microseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from types import SimpleNamespace
from typing import Any

from statemark.align.frame import Frame, uniform_frame
from statemark.align.rules import make_rule
from statemark.vllm.scheduler import scheduler_class

BOUND = 20.0


class Bare:
    """As much of vLLM's scheduler as the method touches."""

    current_step = 0


def cutter(rule: str, frame: Frame) -> Any:
    kind = scheduler_class(Bare)
    made: Any = kind.__new__(kind)
    made.use(make_rule(rule, frame))
    return made


def requests(frame: Frame, decoding: bool, count: int = 2000) -> list[tuple[Any, int]]:
    rng = random.Random(1)
    out = []
    for _ in range(count):
        prompt = rng.randrange(1, 200_000)
        start = prompt if decoding else rng.randrange(prompt)
        if rng.random() < 0.5 and not decoding:
            start = frame.grid.floor(start)
        known = prompt + 1 if decoding else prompt
        junction = rng.choice([0, 0, rng.randrange(1, prompt + 1)])
        view = SimpleNamespace(
            num_prompt_tokens=prompt, num_tokens=known, num_computed_tokens=start, shared_prefix_boundary=junction
        )
        out.append((view, rng.randrange(1, min(frame.step_limit, known - start) + 1)))
    return out


def measure(split: Any, asked: list[tuple[Any, int]], rounds: int = 15) -> dict[str, float]:
    """Microseconds a call: the median round's mean, and the 99th percentile of single calls."""
    means, single = [], []
    for number in range(rounds):
        begun = time.perf_counter_ns()
        for view, offer in asked:
            split(view, offer)
        means.append((time.perf_counter_ns() - begun) / len(asked) / 1000)
        if number == rounds - 1:
            for view, offer in asked:
                at = time.perf_counter_ns()
                split(view, offer)
                single.append((time.perf_counter_ns() - at) / 1000)
    return {"mean": round(statistics.median(means), 2), "p99": round(sorted(single)[len(single) * 99 // 100], 2)}


FRAMES = {
    "block 384, budget 2,048": uniform_frame(384, 2048),
    "block 1,152, budget 8,192, every boundary kept": uniform_frame(1152, 8192, retention=None),
    "block 1,600, MTP drafts, match unit 64": uniform_frame(1600, 2048, drop=True, lookahead=1, match_unit=64),
    "block 384, internal checkpoints": uniform_frame(384, 8192, checkpoint_step=1),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_object = parser.parse_args().json
    rows = []
    for name, frame in FRAMES.items():
        for rule in ("exact", "fast"):
            made = cutter(rule, frame)
            for kind in ("prefill", "decode"):
                asked = requests(frame, kind == "decode")
                rows.append(
                    {"layout": name, "rule": rule, "step": kind, **measure(made._mamba_block_aligned_split, asked)}
                )
    worst = max(float(str(row["mean"])) for row in rows)
    if as_object:
        print(json.dumps({"rows": rows, "worst_mean": worst, "bound": BOUND}, sort_keys=True))
    else:
        for row in rows:
            print(f"{row['layout']:<48}{row['rule']:<8}{row['step']:<9}{row['mean']:>7} us, p99 {row['p99']:>7} us")
        print(f"worst mean {worst} us, bound {BOUND:g} us")
    return int(worst > BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
