"""Statemark behind the worker protocol, through its offline API, as anyone would call it."""

from __future__ import annotations

import time
from typing import Any

from protocol import Engine, Job, serve


class StatemarkEngine(Engine):
    """One `LLM` with the prefix cache off, so that every prefill is computed."""

    def __init__(self, model: str, threads: int, max_model_len: int, max_streams: int, dtype: str) -> None:
        begun = time.perf_counter()
        from statemark import LLM

        self.llm = LLM(
            model,
            dtype=dtype,
            num_threads=threads,
            enable_prefix_caching=False,
            max_model_len=max_model_len,
            max_num_seqs=max_streams,
        )
        self.ready_seconds = time.perf_counter() - begun

    def facts(self) -> dict[str, Any]:
        import statemark

        return {
            "version": f"statemark {statemark.__version__}",
            "isa": self.llm.isa,
            "threads": self.llm.num_threads,
            "ready_seconds": round(self.ready_seconds, 2),
        }

    def run(self, job: Job) -> float:
        from statemark import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=job.output_tokens, ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": ids} for ids in job.prompts]
        begun = time.perf_counter()
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begun
        job.check([len(output.outputs[0].token_ids) for output in outputs])
        return seconds


if __name__ == "__main__":
    serve(StatemarkEngine)
