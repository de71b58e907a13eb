"""One real engine in this process, with its scheduler at hand: other rules, budgets and retention without a restart.

vLLM reads all three from the scheduler's attributes in every step, so one engine serves many cells. That the flags
lead to the same attributes is what the start-up tests show.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from statemark.align.rules import make_rule
from tests.align.tiny_models import qwen3_5, qwen3_next

# One recurrent layer and one of attention: the CPU's recurrent kernel is slow, and blocks don't depend on the depth.
TWO = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
MODELS = {"qwen3-next": qwen3_next(**TWO), "qwen3.5": qwen3_5(**TWO)}

STOCK = "vllm-0.32"
RULES = (STOCK, "exact", "fast")


@dataclass
class Answer:
    """What one request got: tokens reused, a digest of every token's top log-probabilities, its chunk ends."""

    cached: int
    digest: str
    ends: list[int] = field(default_factory=list)


@dataclass
class Engine:
    llm: Any
    steps: list[dict[str, int]] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.frame = self.scheduler.statemark.layout.frame
        self.block = self.frame.grid.tokens
        plan = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = plan(*args, **kwargs)
            if self.scheduler.requests:
                self.steps.append(dict(output.num_scheduled_tokens))
                self.requests.update(self.scheduler.requests)
            return output

        self.scheduler.schedule = schedule

    def cell(self, rule: str, budget: int, retention: int | None = 0) -> None:
        """An empty cache, and from now on this rule, budget and retention."""
        settings = self.scheduler.scheduler_config
        self.scheduler.max_num_scheduled_tokens = settings.max_num_batched_tokens = budget
        self.scheduler.kv_cache_manager.coordinator.retention_interval = retention
        self.frame = replace(self.frame, step_limit=budget, retention=retention)
        self.scheduler.use(None if rule == STOCK else make_rule(rule, self.frame))
        self.forget()

    def forget(self) -> None:
        assert self.llm.reset_prefix_cache()
        self.steps.clear()
        self.requests.clear()

    def ask(self, *prompts: Sequence[int], tokens: int = 1) -> list[Answer]:
        """Prompts of token ids, all at once."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=20)
        before = len(self.steps)
        done = self.llm.generate([{"prompt_token_ids": [*p]} for p in prompts], sampling, use_tqdm=False)
        return [
            Answer(output.num_cached_tokens, digest(output.outputs[0].logprobs), self._ends(output, before))
            for output in done
        ]

    def _ends(self, output: Any, since: int) -> list[int]:
        at, ends = output.num_cached_tokens, []
        name = next((n for n in self.requests if n.startswith(f"{output.request_id}-") or n == output.request_id), None)
        for step in self.steps[since:]:
            if name in step and at < len(output.prompt_token_ids):
                at += step[name]
                ends.append(at)
        return ends


def digest(logprobs: Any) -> str:
    """SHA-256 over the top log-probabilities of every generated token."""
    rows = [sorted((token, repr(entry.logprob)) for token, entry in row.items()) for row in logprobs]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def text(name: str, length: int) -> list[int]:
    """Token ids that depend on the name alone."""
    rng = random.Random(name)
    return [rng.randrange(2, 500) for _ in range(length)]


@contextmanager
def engine(model: str, **options: Any) -> Iterator[Engine]:
    """A tiny model with random weights, served in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        _larger_weights()
        yield Engine(start(model, folder, max_num_batched_tokens=8192, **options))


def _larger_weights() -> None:
    """vLLM's dummy weights are all alike and below a thousandth: no sum then depends on the order of its terms."""
    from vllm.model_executor.model_loader import dummy_loader, weight_utils

    seeds = count(1)
    fill = weight_utils.initialize_single_dummy_weight
    dummy_loader.initialize_single_dummy_weight = lambda tensor: fill(tensor, -0.1, 0.1, next(seeds))


def start(model: str, folder: str, **options: Any) -> Any:
    from vllm import LLM

    Path(folder, "config.json").write_text(json.dumps(MODELS[model]))
    return LLM(
        model=folder,
        **{
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "load_format": "dummy",
            "dtype": "bfloat16",
            "max_model_len": 8192,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 256 << 20,
            "enable_prefix_caching": True,
            "scheduler_cls": "statemark.vllm.Scheduler",
            **options,
        },
    )
