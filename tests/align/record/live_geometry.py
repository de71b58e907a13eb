"""Starts vLLM on every tiny model and records the cache layout that it logs.

    nice python tests/align/record/live_geometry.py [case ...]     where vLLM 0.32 for CPUs is installed

Writes tests/align/data/live_geometry.json. One process a case, weights are dummies. Cases that this machine's vLLM
can't start are recorded with the reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from tiny_models import CASES, COMMON, DRAFTERS  # noqa: E402

OUT = HERE.parent / "data" / "live_geometry.json"
PATTERNS = {
    "attention_block_logged": r"Setting attention block size to (\d+) tokens",
    "padding_logged": r"Padding mamba page size by ([\d.]+)%",
    "group_sizes_logged": r"kv cache group sizes \(([\d, ]+)\)",
    "lcm_logged": r"kv lcm block sizes (\d+)",
    "tokens_logged": r"KV cache size: ([\d,]+) tokens",
    "concurrency_logged": r"per request: ([\d.]+)x",
}


def start(name: str) -> dict[str, Any]:
    """Start one engine in this process and read what it settled on."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm.engine.arg_utils import EngineArgs
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    config, flags = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config))
        drafter = Path(folder, "drafter")
        drafter.mkdir()
        (drafter / "config.json").write_text(json.dumps(DRAFTERS.get(name, {})))
        flags = [f.replace("{drafter}", str(drafter)) for f in flags]
        parser = make_arg_parser(FlexibleArgumentParser())
        args = parser.parse_args(["--model", folder, *COMMON, *flags])
        vllm_config = EngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
        return observed(LLMEngine.from_vllm_config(vllm_config))


def observed(engine: Any) -> dict[str, Any]:
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    cache = core.vllm_config.cache_config
    groups = scheduler.kv_cache_config.kv_cache_groups
    coordinator = scheduler.kv_cache_manager.coordinator
    return {
        "blocks": [g.kv_cache_spec.block_size for g in groups],
        "pages": [g.kv_cache_spec.page_size_bytes for g in groups],
        "kinds": [type(g.kv_cache_spec).__name__ for g in groups],
        "layers": [len(g.layer_names) for g in groups],
        "state_bytes": [
            g.kv_cache_spec.real_page_size_bytes for g in groups if type(g.kv_cache_spec).__name__ == "MambaSpec"
        ],
        "dropped": sorted(coordinator.eagle_group_ids),
        "config_minimum": cache.block_size,
        "scheduler_block": scheduler.block_size,
        "hash_unit": scheduler.hash_block_size,
        "hit_unit": getattr(coordinator, "_cache_hit_alignment_tokens", scheduler.block_size),
        "num_blocks": scheduler.kv_cache_config.num_blocks,
        "max_num_batched_tokens": core.vllm_config.scheduler_config.max_num_batched_tokens,
        "caching": cache.enable_prefix_caching,
        "model_dtype": str(core.vllm_config.model_config.dtype).removeprefix("torch."),
    }


def record(name: str) -> dict[str, Any]:
    """What a fresh process of this case says, in its engine and in its log."""
    path = os.pathsep.join(p for p in (str(HERE / "standin"), os.environ.get("PYTHONPATH", "")) if p)
    done = subprocess.run(
        [sys.executable, __file__, "--one", name],
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
        env={**os.environ, "PYTHONPATH": path},
    )
    answer = next((line[7:] for line in done.stdout.splitlines() if line.startswith("RECORD ")), None)
    text = done.stdout + done.stderr
    if answer is None:
        lines = [line for line in text.splitlines() if "Error" in line] or ["no error line"]
        return {"failed": re.sub(r"^.*\] ", "", lines[-1])[:300]}
    out: dict[str, Any] = json.loads(answer)
    out["float32_states_forced"] = "Reset SSM cache type to float32" in text
    for key, pattern in PATTERNS.items():
        found = re.search(pattern, text)
        out[key] = found[1] if found else None
    return out


def main(names: list[str]) -> None:
    records = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in names or CASES:
        records[name] = record(name)
        print(name, records[name], flush=True)
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print("RECORD " + json.dumps(start(sys.argv[2])))
    else:
        main(sys.argv[1:])
