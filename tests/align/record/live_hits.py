"""Asks a real vLLM a fixed series of prompts and records what it reuses of each.

    nice python tests/align/record/live_hits.py [name ...]       where vLLM 0.32 for CPUs is installed

Writes tests/align/data/live_hits.json. One tiny model at a time, weights are dummies, one request at a time.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tiny_models import CASES, COMMON  # noqa: E402

OUT = HERE.parent / "data" / "live_hits.json"
RUNS = {
    "qwen3.5": ["--max-num-batched-tokens", "2048"],
    "qwen3-next-match-unit": ["--max-num-batched-tokens", "1024"],
    "lfm2": ["--max-num-batched-tokens", "512", "--prefix-cache-retention-interval", "None"],
}
OUTPUTS = 4

Parts = list[tuple[str, int]]


def series(block: int, count: int = 40) -> list[Parts]:
    """Prompts that repeat, extend and leave each other, with lengths on both sides of boundaries."""
    rng = random.Random(block)
    asked: list[Parts] = []
    for number in range(count):
        kind = rng.choice(["new", "again", "extend", "leave"]) if asked else "new"
        before = rng.choice(asked) if asked else []
        length = rng.choice([rng.randrange(1, 5 * block), rng.randrange(1, 6) * block + rng.randrange(-1, 2)])
        own = (f"own {number}", max(1, length))
        if kind == "again":
            asked.append(list(before))
        elif kind == "extend":
            asked.append([*before, (own[0], max(1, length // 3))])
        elif kind == "leave" and sum(n for _, n in before) > 2:
            name, size = before[0]
            asked.append([(name, rng.randrange(1, size + 1)), own])
        else:
            asked.append([own])
    return [p if sum(n for _, n in p) < 12 * block else p[:1] for p in asked]


def tokens(parts: Parts, vocabulary: int = 500) -> list[int]:
    """The same parts give the same tokens; different parts differ from their first token on, almost surely."""
    out = []
    for name, length in parts:
        rng = random.Random(zlib.crc32(name.encode()))
        out += [rng.randrange(2, vocabulary) for _ in range(length)]
    return out


def ask(name: str) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    config, flags = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        parser = make_arg_parser(FlexibleArgumentParser())
        words = ["--model", folder, *COMMON, *flags, *RUNS[name], "--kv-cache-memory-bytes", "600M"]
        engine = EngineArgs.from_cli_args(parser.parse_args(words))
        llm = LLM(**{k: v for k, v in vars(engine).items() if k in LLM_FIELDS})
        block = llm.llm_engine.engine_core.engine_core.scheduler.block_size
        sampling = SamplingParams(max_tokens=OUTPUTS, ignore_eos=True, temperature=0.0)
        asked = series(block)
        hits = []
        for parts in asked:
            done = llm.generate([{"prompt_token_ids": tokens(parts)}], sampling, use_tqdm=False)
            hits.append(done[0].num_cached_tokens)
    return {"block": block, "hits": hits, "prompt_tokens": sum(n for p in asked for _, n in p)}


LLM_FIELDS = {
    "model", "skip_tokenizer_init", "enforce_eager", "load_format", "max_model_len", "max_num_seqs", "dtype",
    "kv_cache_memory_bytes", "max_num_batched_tokens", "speculative_config", "prefix_cache_retention_interval",
    "enable_prefix_caching", "prefix_match_unit",
}  # fmt: skip


def record(name: str) -> dict[str, Any]:
    """What a fresh server reuses, prompt by prompt."""
    path = os.pathsep.join(p for p in (str(HERE / "standin"), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=3600,
        env={**os.environ, "PYTHONPATH": path},
    )
    answer = next((line[7:] for line in done.stdout.splitlines() if line.startswith("RECORD ")), None)
    if answer is None:
        raise RuntimeError(f"{name}: {done.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(answer)
    # On processors with AVX-512 BF16 it does that for the accelerated Gated DeltaNet, and blocks become larger.
    found["float32_states_forced"] = "Reset SSM cache type to float32" in done.stdout + done.stderr
    return found


def main() -> None:
    records = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in sys.argv[1:] or RUNS:
        records[name] = record(name)
        print(name, records[name]["block"], sum(records[name]["hits"]), flush=True)
        OUT.write_text(json.dumps(records, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print("RECORD " + json.dumps(ask(sys.argv[2])))
    else:
        main()
