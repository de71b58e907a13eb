"""One real engine in this process, with its scheduler at hand: other rules, budgets and retention without a restart.

vLLM reads all three from the scheduler's attributes in every step, so one engine serves many cells. That the flags
lead to the same attributes is what the start-up tests show.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from statemark.align.rules import make_rule
from tests.align.tiny_models import qwen3_5, qwen3_next
from tests.vllm.live import drafts, weights

# Few layers and heads: the CPU's recurrent kernel is slow. With float32 states and blocks of a multiple of 32 (the
# smallest that vLLM for CPUs takes) the block comes to 160 tokens, two and a half chunks of the recurrent kernel. As
# with the 544, 784 and 1,568 of large models, the kernel then cuts a chunk that starts at a boundary at other places
# than one that started before it.
SMALL = {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_value_heads": 4,
}
MODELS = {
    "qwen3-next": qwen3_next(**SMALL, tie_word_embeddings=False),  # as vLLM loads it, whatever its config says
    "qwen3.5": qwen3_5(**SMALL),
    "qwen3.5-mtp": qwen3_5(**SMALL, mtp_num_hidden_layers=1),
    "qwen3.5-hidden": qwen3_5(**SMALL),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "qwen3.5-mtp": {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}},
    # Hidden states of two layers fill a page with 80 tokens: the smallest block is half that of the states.
    "qwen3.5-hidden": {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
        },
        "kv_transfer_config": {"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer"},
    },
}

STOCK = "vllm-0.32"
RULES = (STOCK, "exact", "fast")


@dataclass
class Answer:
    """What one request got: tokens reused, the top log-probabilities of every token and their digest, its chunk ends,
    and how many steps gave it tokens after the first."""

    cached: int
    rows: list[dict[int, float]]
    ends: list[int] = field(default_factory=list)
    decodes: int = 0

    @property
    def digest(self) -> str:
        return digest(self.rows)

    def distance(self, other: Answer) -> float:
        """The largest difference of the first token's log-probabilities, of those that both have. Later tokens may
        follow different ones."""
        mine, theirs = self.rows[0], other.rows[0]
        found = max(abs(mine[t] - theirs[t]) for t in mine.keys() & theirs.keys())
        assert math.isfinite(found)  # all digests of nan are equal
        return found


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
        for _ in range(3):  # a connector lets go of a request's blocks in the steps after its last
            self.llm.llm_engine.step()
        assert self.llm.reset_prefix_cache()
        self.steps.clear()
        self.requests.clear()

    def drafts(self) -> int:
        """Tokens that a drafter proposes in each step, 0 without one."""
        return int(self.scheduler.num_spec_tokens)

    def ask(self, *prompts: Sequence[int], tokens: int = 1) -> list[Answer]:
        """Prompts of token ids, all at once."""
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=20)
        before = len(self.steps)
        done = self.llm.generate([{"prompt_token_ids": [*p]} for p in prompts], sampling, use_tqdm=False)
        return [
            Answer(output.num_cached_tokens, rows(output.outputs[0].logprobs), *self._ends(output, before))
            for output in done
        ]

    def _ends(self, output: Any, since: int) -> tuple[list[int], int]:
        at, ends, decodes = output.num_cached_tokens, [], 0
        name = next((n for n in self.requests if n.startswith(f"{output.request_id}-") or n == output.request_id), None)
        for step in self.steps[since:]:
            if name not in step:
                continue
            if at < len(output.prompt_token_ids):
                at += step[name]
                ends.append(at)
            else:
                decodes += 1
        return ends, decodes


def rows(logprobs: Any) -> list[dict[int, float]]:
    return [{token: entry.logprob for token, entry in row.items()} for row in logprobs]


def digest(rows: list[dict[int, float]]) -> str:
    """SHA-256 over the top log-probabilities of every generated token."""
    exact = [sorted((token, repr(value)) for token, value in row.items()) for row in rows]
    return hashlib.sha256(json.dumps(exact).encode()).hexdigest()


def text(name: str, length: int) -> list[int]:
    """Token ids that depend on the name alone."""
    rng = random.Random(name)
    return [rng.randrange(2, 500) for _ in range(length)]


@contextmanager
def engine(model: str, **options: Any) -> Iterator[Engine]:
    """A tiny model with random weights, served in this process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    drafts.register()
    with tempfile.TemporaryDirectory() as folder:
        yield Engine(start(model, folder, max_num_batched_tokens=8192, **options))


def start(model: str, folder: str, **options: Any) -> Any:
    from vllm import LLM

    weights.write(folder, MODELS[model])
    return LLM(
        model=folder,
        **{
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "dtype": "bfloat16",
            "max_model_len": 8192,
            "block_size": 16,
            "mamba_ssm_cache_dtype": "float32",
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 256 << 20,
            "enable_prefix_caching": True,
            "scheduler_cls": "statemark.vllm.Scheduler",
            **OPTIONS.get(model, {}),
            **options,
        },
    )
