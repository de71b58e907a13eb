"""Named shapes of models, from their public configs, and their small siblings of the same proportions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from statemark.errors import ConfigurationError
from statemark.models.config import ATTENTION, RECURRENT, TEXT_ARCHITECTURE

SCALES = ("tiny", "full")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions that a random-weight model copies. Everything else is the same for the whole family."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    tied: bool
    vocab: int = 248320
    head_dim: int = 256
    recurrent_dim: int = 128
    positions: int = 262144

    def tiny(self) -> Shape:
        """Same ratios and layer pattern, four layers, made and loaded in about a second.

        Recurrent heads keep their 128 dimensions: vLLM's CPU kernels crash on others.
        """
        return replace(
            self,
            layers=4,
            hidden=128,
            intermediate=128 * self.intermediate // self.hidden // 8 * 8,
            heads=self.heads // self.kv_heads * 2,
            kv_heads=2,
            key_heads=2,
            value_heads=2 * self.value_heads // self.key_heads,
            vocab=2048,
            head_dim=64,
            positions=8192,
        )


SHAPES = {
    # The vocabulary of this one is cut to 65,536, the size that benchmarks of this project quote.
    "qwen3.5-0.8b": Shape(
        layers=24, hidden=1024, intermediate=3584, heads=8, kv_heads=2, key_heads=16, value_heads=16, tied=True,
        vocab=65536,
    ),
    "qwen3.5-2b": Shape(
        layers=24, hidden=2048, intermediate=6144, heads=8, kv_heads=2, key_heads=16, value_heads=16, tied=True
    ),
    "qwen3.5-4b": Shape(
        layers=32, hidden=2560, intermediate=9216, heads=16, kv_heads=4, key_heads=16, value_heads=32, tied=True
    ),
    "qwen3.5-9b": Shape(
        layers=32, hidden=4096, intermediate=12288, heads=16, kv_heads=4, key_heads=16, value_heads=32, tied=False
    ),
    "qwen3.5-27b": Shape(
        layers=64, hidden=5120, intermediate=17408, heads=24, kv_heads=4, key_heads=16, value_heads=48, tied=False
    ),
}  # fmt: skip


def named_shape(like: str, scale: str) -> Shape:
    if like not in SHAPES:
        raise ConfigurationError(f"unknown shape {like!r}", hint=f"known shapes: {', '.join(SHAPES)}")
    if scale not in SCALES:
        raise ConfigurationError(f"unknown scale {scale!r}", hint=f"known scales: {', '.join(SCALES)}")
    return SHAPES[like].tiny() if scale == "tiny" else SHAPES[like]


def config_json(shape: Shape, dtype: str) -> dict[str, Any]:
    """config.json of a shape, complete, as transformers and vLLM read it."""
    return {
        "architectures": [TEXT_ARCHITECTURE],
        "model_type": "qwen3_5_text",
        "dtype": dtype,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "layer_types": [ATTENTION if i % 4 == 3 else RECURRENT for i in range(shape.layers)],
        "full_attention_interval": 4,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "linear_num_key_heads": shape.key_heads,
        "linear_num_value_heads": shape.value_heads,
        "linear_key_head_dim": shape.recurrent_dim,
        "linear_value_head_dim": shape.recurrent_dim,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000.0,
            "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10],
            "mrope_interleaved": True,
        },
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": shape.tied,
        "use_cache": True,
        "initializer_range": 0.02,
    }
