"""What `statemark simulate` takes of processor and memory for a million requests, rule by rule.

    python benchmarks/simulate_million.py                       # all rules, one after the other
    python benchmarks/simulate_million.py --rule fast --requests 100000

The trace is made here, as Mooncake lines: chats of 1 to 3 turns that begin with one of 50 heads, 8,000 tokens a prompt
on average, about a third of them shared with what came before. Each rule runs as the command would, alone in a process;
processor time (user and system) and peak memory are what the kernel accounts to that process, so other load on the
machine hardly matters. Reading the trace is included.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

RULES = ("vllm-0.32", "exact", "fast", "statemark", "llama.cpp")
MODEL = Path(__file__).parents[1] / "docs" / "align" / "qwen3-next"
BLOCK, HEADS, EVERY_MS, PAUSE_MS = 512, 50, 500, 20_000


def lines(requests: int, seed: int) -> Iterator[str]:
    """JSON lines in order of time: a new chat whenever no chat is due for its next turn."""
    draw = random.Random(seed)
    due: list[tuple[int, int, list[int], int]] = []  # (time, prompt tokens, whole blocks so far, turns left)
    last = HEADS * 2
    for number in range(requests):
        now = number * EVERY_MS
        if due and due[0][0] <= now:
            _, length, blocks, turns = heapq.heappop(due)
            length += draw.randrange(1000, 3000)
        else:
            head = draw.randrange(HEADS)
            length, blocks, turns = (
                draw.randrange(3400, 10600),
                [2 * head, 2 * head + 1],
                draw.choice((1, 1, 1, 1, 2, 3)),
            )
        new = -(-length // BLOCK) - len(blocks)
        blocks = [*blocks, *range(last, last + new)]
        last += new
        output = draw.randrange(20, 400)
        line = {"timestamp": now, "input_length": length, "output_length": output, "hash_ids": blocks}
        yield json.dumps(line) + "\n"
        if turns > 1:
            whole = blocks[: length // BLOCK]
            heapq.heappush(due, (now + draw.randrange(PAUSE_MS // 4, PAUSE_MS), length + output, whole, turns - 1))


def measure(trace: Path, rule: str, words: list[str]) -> dict[str, object]:
    command = [
        str(Path(sys.executable).with_name("statemark")),
        "simulate",
        str(trace),
        "--model",
        str(MODEL),
        "--rule",
        rule,
    ]
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen([*command, "--json", *words], stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit(f"{rule}: exit code {child.returncode}")
        out.seek(0)
        result = json.load(out)["results"][0]
    return {
        "rule": rule,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_gib": round(usage.ru_maxrss / (1 << 20), 2),
        **{name: result[name] for name in ("requests", "hit_rate", "steps", "preempted", "refused", "never")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time and memory of a long simulation.")
    parser.add_argument("--rule", action="append", choices=RULES, help="repeatable; default: all")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="keep the trace here, or take the one that is there")
    options, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = options.trace or Path(folder) / "trace.jsonl"
        if not trace.exists():
            with trace.open("w", encoding="utf-8") as file:
                file.writelines(lines(options.requests, options.seed))
        for rule in options.rule or RULES:
            print(json.dumps(measure(trace, rule, words)), flush=True)


if __name__ == "__main__":
    main()
