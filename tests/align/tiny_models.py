"""Tiny models of every family with the serve flags to start them with, shared by the recorder and the tests.

Plain data: imported both where statemark is installed and where vLLM is.
"""

from __future__ import annotations

import json
from typing import Any

BASE = {
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 16384,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
ROPE = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25}


def _layers(kinds: str, names: dict[str, str]) -> list[str]:
    return [names[k] for k in kinds]


GDN_NAMES = {"r": "linear_attention", "a": "full_attention"}
MAMBA_NAMES = {"r": "mamba", "a": "attention"}


def qwen3_next(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": _layers("rrrarrra", GDN_NAMES),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rope_parameters": ROPE,
        "partial_rotary_factor": 0.25,
        **changes,
    }


def qwen3_5(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "layer_types": _layers("rrrarrra", GDN_NAMES),
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "hidden_act": "silu",
        "rope_parameters": ROPE,
        "mamba_ssm_dtype": "float32",
        **changes,
    }


def qwen3_5_moe(**changes: Any) -> dict[str, Any]:
    return qwen3_5(
        architectures=["Qwen3_5MoeForCausalLM"],
        model_type="qwen3_5_moe_text",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        **changes,
    )


def granite(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": _layers("rrrarrra", MAMBA_NAMES),
        "mamba_n_heads": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 64,
        "mamba_d_head": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": 256,
        "position_embedding_type": "nope",
        "hidden_act": "silu",
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": 0.125,
        **changes,
    }


def nemotron_h(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-M*-M-M*-",
        "num_hidden_layers": 10,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "attention_head_dim": 64,
        "ssm_state_size": 64,
        "mamba_num_heads": 8,
        "mamba_head_dim": 64,
        "n_groups": 2,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 128,
        "mlp_hidden_act": "relu2",
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "mlp_bias": False,
        "use_conv_bias": True,
        "mamba_proj_bias": False,
        "tie_word_embeddings": False,
        **changes,
    }


def falcon_h1(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 512,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 256,
        "hidden_act": "silu",
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        **changes,
    }


def jamba(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["JambaForCausalLM"],
        "model_type": "jamba",
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 16,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "hidden_act": "silu",
        **changes,
    }


def lfm2(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "layer_types": ["conv", "conv", "full_attention", "conv", "conv", "full_attention"],
        "conv_L_cache": 3,
        "conv_bias": False,
        "conv_dim": 256,
        "conv_dim_out": 256,
        "block_dim": 256,
        "block_ff_dim": 256,
        "block_multiple_of": 64,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        **changes,
    }


def zamba2(**changes: Any) -> dict[str, Any]:
    return {
        **BASE,
        "architectures": ["Zamba2ForCausalLM"],
        "model_type": "zamba2",
        "num_hidden_layers": 6,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "mamba", "hybrid"],
        "hybrid_layer_ids": [1, 3, 5],
        "num_mem_blocks": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "attention_hidden_size": 512,
        "attention_head_dim": 128,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "mamba_headdim": 64,
        "chunk_size": 256,
        "use_mem_rope": False,
        "use_shared_attention_adapter": False,
        "hidden_act": "gelu",
        **changes,
    }


COMMON = ["--load-format", "dummy", "--enforce-eager", "--max-model-len", "16384", "--max-num-seqs", "4"]
COMMON += ["--kv-cache-memory-bytes", "192M", "--skip-tokenizer-init"]
MTP = '{"method": "mtp", "num_speculative_tokens": 2}'


def qwen3(**changes: Any) -> dict[str, Any]:
    """A pure-attention drafter."""
    return {
        **BASE,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        **changes,
    }


def draft(**settings: Any) -> list[str]:
    return ["--speculative-config", json.dumps({"model": "{drafter}", **settings})]


def llama(**changes: Any) -> dict[str, Any]:
    """A drafter whose layers may have a window."""
    return qwen3(architectures=["LlamaForCausalLM"], model_type="llama", **changes)


SLIDING = {"sliding_window": 512, "layer_types": ["sliding_attention"] * 2}

# The drafter's config where a case has one; "{drafter}" in its flags stands for the folder.
DRAFTERS: dict[str, dict[str, Any]] = {
    "qwen3.5-draft-narrow": qwen3(),
    "qwen3.5-draft-wide": qwen3(num_key_value_heads=4),
    "qwen3.5-draft-ignored-window": qwen3(num_key_value_heads=4, use_sliding_window=True, **SLIDING),
    "qwen3.5-draft-window": llama(num_key_value_heads=4, **SLIDING),
    "qwen3.5-draft-odd-window": llama(hidden_size=384, num_attention_heads=6, num_key_value_heads=3, **SLIDING),
}

# name -> (config, flags besides COMMON)
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "qwen3-next": (qwen3_next(), []),
    "qwen3-next-match-unit": (qwen3_next(), ["--prefix-match-unit", "64"]),
    "qwen3.5": (qwen3_5(), []),
    "qwen3.5-wide": (
        qwen3_5(head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128)
        | {"linear_value_head_dim": 128},
        ["--max-num-batched-tokens", "1024"],
    ),
    "qwen3.5-bf16-state": (qwen3_5(), ["--mamba-ssm-cache-dtype", "bfloat16", "--block-size", "64"]),
    "qwen3.5-moe": (qwen3_5_moe(num_key_value_heads=1), ["--no-enable-prefix-caching"]),
    "qwen3.5-mtp": (qwen3_5(mtp_num_hidden_layers=1), ["--speculative-config", MTP]),
    "granite-4-h": (granite(), ["--prefix-cache-retention-interval", "None"]),
    "nemotron-h": (nemotron_h(), []),
    "falcon-h1": (falcon_h1(), ["--block-size", "32"]),
    "jamba": (jamba(mamba_d_state=128, mamba_expand=4), ["--mamba-ssm-cache-dtype", "float32"]),
    "lfm2": (lfm2(), []),
    "lfm2-wide": (lfm2(hidden_size=2048, conv_dim=2048, conv_L_cache=64), ["--block-size", "32"]),
    "zamba2": (zamba2(), []),
    "qwen3.5-draft-narrow": (qwen3_5(), draft(method="draft_model", num_speculative_tokens=2)),
    "qwen3.5-draft-wide": (qwen3_5(), draft(method="draft_model", num_speculative_tokens=1)),
    "qwen3.5-draft-ignored-window": (qwen3_5(), draft(method="draft_model", num_speculative_tokens=3)),
    "qwen3.5-draft-window": (qwen3_5(), draft(method="draft_model", num_speculative_tokens=3)),
    "qwen3.5-draft-odd-window": (qwen3_5(), draft(method="draft_model", num_speculative_tokens=1)),
}
