"""The bundled model's shape, once: the fast training module, the export and the tests read it here.

Knows nothing of torch. `to_config` gives what transformers' Qwen3_5TextConfig and Statemark's loader read.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    vocab: int = 1984
    hidden: int = 256
    layers: int = 4
    intermediate: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    key_heads: int = 4
    value_heads: int = 4
    key_dim: int = 32
    value_dim: int = 64
    conv_width: int = 4
    rope_theta: float = 10000.0
    rotary_factor: float = 0.25
    eps: float = 1e-6
    max_positions: int = 4096
    attention_every: int = 4

    @property
    def conv_dim(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.rotary_factor)

    def is_attention(self, layer: int) -> bool:
        return (layer + 1) % self.attention_every == 0

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Shape":
        return cls(
            vocab=config["vocab_size"],
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            intermediate=config["intermediate_size"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            key_heads=config["linear_num_key_heads"],
            value_heads=config["linear_num_value_heads"],
            key_dim=config["linear_key_head_dim"],
            value_dim=config["linear_value_head_dim"],
            conv_width=config["linear_conv_kernel_dim"],
            rope_theta=config["rope_parameters"]["rope_theta"],
            rotary_factor=config["rope_parameters"]["partial_rotary_factor"],
            eps=config["rms_norm_eps"],
            max_positions=config["max_position_embeddings"],
            attention_every=config["full_attention_interval"],
        )

    def to_config(self, **token_ids: Any) -> dict[str, Any]:
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "layer_types": [
                "full_attention" if self.is_attention(i) else "linear_attention" for i in range(self.layers)
            ],
            "full_attention_interval": self.attention_every,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_key_head_dim": self.key_dim,
            "linear_value_head_dim": self.value_dim,
            "linear_conv_kernel_dim": self.conv_width,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "rms_norm_eps": self.eps,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.rotary_factor,
            },
            "max_position_embeddings": self.max_positions,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "use_cache": True,
            **token_ids,
        }
