"""OpenVINO GenAI's stateful pipeline behind the worker protocol. Runs inside its own environment.

The pipeline runs one sequence. Its other one, for serving, batches, but prefills several times slower on this
architecture, so it is no peer in prefill.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

import numpy as np
from protocol import Engine, Job, serve


class OpenVinoEngine(Engine):
    """`model` is a folder that optimum has exported. `dtype`: precision of its arithmetic, bf16 or f32."""

    def __init__(self, model: str, threads: int, max_model_len: int, max_streams: int, dtype: str) -> None:
        begun = time.perf_counter()
        import openvino_genai

        self.genai, self.threads, self.dtype = openvino_genai, threads, dtype
        options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": dtype, "ATTENTION_BACKEND": "SDPA"}
        self.pipeline = openvino_genai.LLMPipeline(model, "CPU", **options)
        self.ready_seconds = time.perf_counter() - begun

    def facts(self) -> dict[str, Any]:
        return {
            "version": f"openvino-genai {version('openvino-genai')}",
            "pipeline": "stateful",
            "threads": self.threads,
            "precision": self.dtype,
            "ready_seconds": round(self.ready_seconds, 2),
        }

    def run(self, job: Job) -> float:
        import openvino

        [prompt] = job.prompts
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = job.output_tokens, True, False
        config.min_new_tokens = job.output_tokens
        ids = np.array([prompt], dtype=np.int64)
        inputs = self.genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        begun = time.perf_counter()
        result = self.pipeline.generate(inputs, config)
        seconds = time.perf_counter() - begun
        job.check([len(tokens) for tokens in result.tokens])
        return seconds


if __name__ == "__main__":
    serve(OpenVinoEngine)
