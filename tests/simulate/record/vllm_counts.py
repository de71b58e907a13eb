"""Asks a real vLLM for CPUs the workload and records how many prompt tokens of each request it took from its cache.

    python tests/simulate/record/vllm_counts.py [name ...]       where vLLM 0.32 for CPUs is installed

Writes tests/simulate/data/vllm_counts.json. A tiny model with dummy weights; a wave is one call of `generate`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ALIGN = HERE.parents[1] / "align"
sys.path[:0] = [str(HERE), str(ALIGN)]

from tiny_models import CASES, COMMON  # noqa: E402
from workload import tokens, workload  # noqa: E402

OUT = HERE.parent / "data" / "vllm_counts.json"
# name: (tiny model, further flags, seed, longest prompt, largest wave)
RUNS: dict[str, tuple[str, list[str], int, int, int]] = {
    "room for all": ("qwen3.5", ["--max-num-batched-tokens", "2048", "--num-gpu-blocks-override", "4000"], 1, 4000, 1),
    "in waves": (
        "qwen3.5",
        ["--max-num-batched-tokens", "1024", "--max-num-seqs", "8", "--num-gpu-blocks-override", "4000"],
        2,
        4000,
        24,
    ),
    "few blocks": (
        "qwen3.5",
        ["--max-num-batched-tokens", "1024", "--max-num-seqs", "8", "--num-gpu-blocks-override", "90"],
        3,
        4000,
        16,
    ),
}


def ask(name: str) -> dict[str, Any]:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    model, flags, seed, longest, largest = RUNS[name]
    config, own = CASES[model]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        parser = make_arg_parser(FlexibleArgumentParser())
        words = ["--model", folder, *COMMON, *own, *flags, "--kv-cache-memory-bytes", "600M"]
        engine = EngineArgs.from_cli_args(parser.parse_args(words))
        llm = LLM(**{k: v for k, v in vars(engine).items() if k in FIELDS})
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        asks = workload(seed, longest, largest)
        answers: dict[str, list[int]] = {}
        cached, steps = [], 0
        begun = time.time()
        run = scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            output = run(*args, **kwargs)
            steps += output.total_num_scheduled_tokens > 0
            return output

        scheduler.schedule = counted
        for wave in range(asks[-1].wave + 1):
            batch = [a for a in asks if a.wave == wave]
            prompts = [{"prompt_token_ids": tokens(a.parts, answers)} for a in batch]
            sampling = [SamplingParams(max_tokens=a.output, ignore_eos=True, temperature=2.0) for a in batch]
            done = llm.generate(prompts, sampling, use_tqdm=False)
            cached += [d.num_cached_tokens for d in done]
            print(f"{name}: {len(cached)} asked", file=sys.stderr, flush=True)
            answers.update((a.answer, list(d.outputs[0].token_ids)) for a, d in zip(batch, done, strict=True))
        return {
            "block": scheduler.block_size,
            "blocks": scheduler.kv_cache_manager.block_pool.num_gpu_blocks,
            "cached": cached,
            "prompt_tokens": sum(n for a in asks for _, n in a.parts),
            "steps": steps,
            "seconds": round(time.time() - begun, 1),
        }


FIELDS = {
    "model", "skip_tokenizer_init", "enforce_eager", "load_format", "max_model_len", "max_num_seqs", "dtype",
    "kv_cache_memory_bytes", "max_num_batched_tokens", "enable_prefix_caching", "num_gpu_blocks_override",
}  # fmt: skip


def _here(name: str, out: Any) -> None:
    out.send(ask(name))


def ask_each(names: list[str]) -> None:
    """One process a run, forked after vLLM is imported: that takes longer than the runs."""
    import multiprocessing

    import vllm  # noqa: F401

    context = multiprocessing.get_context("fork")
    for name in names:
        inner, outer = context.Pipe()
        child = context.Process(target=_here, args=(name, outer))
        child.start()
        outer.close()
        try:
            print("RECORD " + json.dumps({"name": name, **inner.recv()}), flush=True)
        except EOFError:
            print(f"{name} failed", file=sys.stderr)
        child.join()


def record(names: list[str]) -> dict[str, Any]:
    """What fresh servers reuse, request by request."""
    path = os.pathsep.join(p for p in (str(ALIGN / "record" / "standin"), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, __file__, "--here", *names],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=3600,
        # One thread: two that wait for each other crawl on a machine that does other things besides.
        env={
            **os.environ,
            "PYTHONPATH": path,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        },
    )
    found = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RECORD ")]
    return {record.pop("name"): record for record in found}


def main() -> None:
    records = json.loads(OUT.read_text()) if OUT.exists() else {}
    records |= record(sys.argv[1:] or list(RUNS))
    OUT.write_text(json.dumps(records, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        ask_each(sys.argv[2:])
    else:
        main()
