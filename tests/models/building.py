"""Small checkpoints of every kind and a way to run them: shared by the tests of models and of numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statemark import kernels
from statemark.kernels import reference
from statemark.models import load_model
from statemark.models.make_model import write_model

COMMON: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
}

# No two agree in any dimension that they can avoid sharing.
CONFIGS: dict[str, dict[str, Any]] = {
    "interval-4-tied": {
        "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "attention_bias": False, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    },
    "interval-2-bias": {
        "vocab_size": 301, "hidden_size": 96, "intermediate_size": 136, "num_hidden_layers": 5,
        "full_attention_interval": 2, "num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 16,
        "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 16, "linear_value_head_dim": 40,
        "linear_conv_kernel_dim": 3, "attention_bias": True, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "custom-layers": {
        "vocab_size": 777, "hidden_size": 128, "intermediate_size": 72, "num_hidden_layers": 6,
        "layer_types": ["full_attention", "linear_attention", "linear_attention",
                        "full_attention", "full_attention", "linear_attention"],
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
        "linear_num_key_heads": 1, "linear_num_value_heads": 6, "linear_key_head_dim": 64, "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 2, "attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 3e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 1.0},
    },
    "only-attention": {
        "vocab_size": 404, "hidden_size": 80, "intermediate_size": 88, "num_hidden_layers": 3,
        "full_attention_interval": 1, "num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": 24,
        "attention_bias": False, "tie_word_embeddings": False, "rms_norm_eps": 1e-4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 2e6, "partial_rotary_factor": 0.75},
    },
    "only-recurrent": {
        "vocab_size": 350, "hidden_size": 75, "intermediate_size": 103, "num_hidden_layers": 3,
        "full_attention_interval": 8,
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 24, "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 5, "tie_word_embeddings": True, "rms_norm_eps": 2e-6,
    },
    "legacy-rope": {
        "vocab_size": 450, "hidden_size": 112, "intermediate_size": 200, "num_hidden_layers": 7,
        "full_attention_interval": 3, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 40,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 48, "linear_value_head_dim": 56,
        "linear_conv_kernel_dim": 4, "attention_bias": True, "tie_word_embeddings": False, "rms_norm_eps": 1e-6,
        "rope_theta": 3e5, "partial_rotary_factor": 0.3,
    },
    "real-head-sizes": {
        "vocab_size": 600, "hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 4,
        "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    return {**COMMON, **CONFIGS[name], **changes}


def write(out: Path, name: str = "interval-4-tied", *, seed: int = 1, dtype: str = "float32", **changes: Any) -> Path:
    """A checkpoint folder of a named config."""
    return write_model(out, config_of(name, **changes), seed=seed, dtype=dtype).path


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; a value of ... removes the key."""
    raw = json.loads(path.read_text())
    raw.update(changes)
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))


def runtimes(every: bool = False) -> list[str]:
    """What a test runs on: the NumPy kernels and the best instruction set, or all of them.

    Where STATEMARK_ISA names one (CI runs the tests once for each), that one alone.
    """
    chosen = os.environ.get("STATEMARK_ISA")
    if chosen:
        return [chosen]
    return ["numpy", *kernels.available_isas()[: None if every else 1]]


def make_runtime(name: str) -> tuple[Any, Any]:
    """(module, runtime) of a name out of `runtimes`."""
    if name == "numpy":
        return reference, reference.Runtime()
    return kernels, kernels.Runtime(threads=2, isa=name)


class Runner:
    """A loaded model with an arena for one sequence in slot 0, or for a few beside each other."""

    def __init__(self, folder: Path, runtime: str = "numpy", dtype: str = "float32", slots: int = 8) -> None:
        self.kernels, self.runtime = make_runtime(runtime)
        self.model: Any = load_model(folder, runtime=self.runtime, dtype=dtype)
        self.spec = self.model.spec
        self.slots = slots
        self.hashes: dict[int, int] = {}

    def arena(self, tokens: int, sequences: int = 1) -> Any:
        spec = self.spec
        pages = sequences * -(-tokens // self.kernels.PAGE)
        return self.kernels.Arena(
            num_pages=pages,
            page_elems=spec.page_elems,
            kv_dtype=spec.kv_dtype,
            num_slots=self.slots,
            slot_floats=spec.slot_floats,
            num_stamps=spec.num_recurrent_layers,
        )

    def step(
        self,
        arena: Any,
        pieces: Sequence[tuple[Sequence[int], int, int, Sequence[int]]],
        *,
        marks: Sequence[tuple[int, int, int]] = (),
        state_in: Sequence[int] | None = None,
    ) -> np.ndarray:
        """One forward; a piece is (ids of this step, position of the first, slot, pages). Logits of all rows."""
        ids = np.concatenate([np.asarray(p[0], dtype=np.int32) for p in pieces])
        counts = [len(p[0]) for p in pieces]
        starts = np.cumsum([0, *counts]).astype(np.int32)
        position = np.array([p[1] for p in pieces], dtype=np.int32)
        slots = np.array([p[2] for p in pieces], dtype=np.int32)
        reads = slots if state_in is None else np.array(state_in, dtype=np.int32)
        width = max(len(p[3]) for p in pieces)
        table = np.full((len(pieces), width), -1, dtype=np.int32)
        for row, piece in zip(table, pieces, strict=True):
            row[: len(piece[3])] = piece[3]
        hashes = np.array([self.hashes.get(p[2] if state_in is None else int(r), 0) if p[1] else 0
                           for p, r in zip(pieces, reads, strict=True)], dtype=np.uint64)  # fmt: skip
        batch = self.kernels.Batch(
            token_ids=ids,
            seq_start=starts,
            seq_position=position,
            seq_hash=hashes,
            state_in=np.where(position == 0, -1, reads).astype(np.int32),
            state_out=slots,
            marks=np.array(marks, dtype=np.int32).reshape(-1, 3),
            page_table=table,
        )
        positions = np.concatenate([np.arange(p[1], p[1] + n) for p, n in zip(pieces, counts, strict=True)])
        hidden = self.model.forward(batch, ids, positions.astype(np.int32), arena)
        logits: np.ndarray = self.model.logits(hidden)
        for i, piece in enumerate(pieces):
            rolling = int(hashes[i])
            for offset, token in enumerate(piece[0], 1):
                rolling = reference.next_hash(rolling, int(token))
                for sequence, at, slot in marks:
                    if (sequence, at) == (i, offset):
                        self.hashes[slot] = rolling
            self.hashes[piece[2]] = rolling
        return logits

    def logits(self, ids: Sequence[int], chunks: Sequence[int] | None = None) -> np.ndarray:
        """Logits of every position of one prompt, run in chunks of the given lengths (default: whole)."""
        arena = self.arena(len(ids))
        pages = list(range(-(-len(ids) // self.kernels.PAGE)))
        self.hashes = {}
        rows, done = [], 0
        for length in chunks or [len(ids)]:
            rows.append(self.step(arena, [(ids[done : done + length], done, 0, pages)]))
            done += length
        assert done == len(ids)
        return np.concatenate(rows)


def prompt(vocab_size: int, length: int, seed: int = 0) -> list[int]:
    """Token ids by an integer recurrence, the same everywhere."""
    ids, x = [], seed * 7919 + 12345
    for _ in range(length):
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        ids.append((x >> 33) % vocab_size)
    return ids
