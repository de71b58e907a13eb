"""From a Hugging Face config to a model's cache shape: one reader a family, chosen by architecture or model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from statemark.align.families import gated_delta, kimi_delta, mamba, others
from statemark.align.fields import Fields
from statemark.align.shape import ModelShape
from statemark.errors import CheckpointError

Reader = Callable[[Fields, Fields, str], ModelShape]

_BY_TYPE: dict[str, Reader] = {
    "qwen3_next": gated_delta.qwen3_next,
    "qwen3_5": gated_delta.qwen3_5,
    "qwen3_5_text": gated_delta.qwen3_5,
    "qwen3_5_moe": gated_delta.qwen3_5,
    "qwen3_5_moe_text": gated_delta.qwen3_5,
    "qwen4_exp": gated_delta.qwen4_exp,
    "qwen4_exp_text": gated_delta.qwen4_exp,
    "olmo_hybrid": gated_delta.olmo_hybrid,
    "kimi_linear": kimi_delta.kimi_linear,
    "kimi_k3": kimi_delta.kimi_linear,
    "glm5_next": kimi_delta.glm5_next,
    "glm5_next_text": kimi_delta.glm5_next,
    "granitemoehybrid": mamba.granite,
    "nemotron_h": mamba.nemotron_h,
    "falcon_h1": mamba.falcon_h1,
    "bamba": mamba.bamba,
    "zamba2": mamba.zamba2,
    "jamba": mamba.jamba,
    "lfm2": others.lfm2,
    "lfm2_moe": others.lfm2,
    "lfm2_vl": others.lfm2,
    "minimax": others.minimax,
    "minimax_text_01": others.minimax,
    "minimax_m1": others.minimax,
}

# Architectures whose config may carry another model_type.
_BY_ARCHITECTURE: dict[str, str] = {
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForCausalLM": "qwen3_5",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForCausalLM": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5",
    "Qwen4ExpForCausalLM": "qwen4_exp",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp",
    "OlmoHybridForCausalLM": "olmo_hybrid",
    "KimiLinearForCausalLM": "kimi_linear",
    "KimiK3ForConditionalGeneration": "kimi_k3",
    "Glm5NextForCausalLM": "glm5_next",
    "Glm5NextForConditionalGeneration": "glm5_next",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "NemotronHForCausalLM": "nemotron_h",
    "NemotronHPuzzleForCausalLM": "nemotron_h",
    "FalconH1ForCausalLM": "falcon_h1",
    "BambaForCausalLM": "bamba",
    "Zamba2ForCausalLM": "zamba2",
    "JambaForCausalLM": "jamba",
    "Lfm2ForCausalLM": "lfm2",
    "Lfm2MoeForCausalLM": "lfm2_moe",
    "Lfm2VlForConditionalGeneration": "lfm2_vl",
    "MiniMaxForCausalLM": "minimax",
    "MiniMaxText01ForCausalLM": "minimax",
    "MiniMaxM1ForCausalLM": "minimax",
}

FAMILIES = (
    "Qwen3-Next, Qwen3.5 / 3.6 / 3.8, Qwen4-Exp, OLMo-hybrid, Kimi-Linear, GLM-5.3-Flash, Granite-4-H, Nemotron-H, "
    "Falcon-H1, Bamba, Zamba2, Jamba, LFM2, MiniMax-Text-01 / M1"
)

# Fields that only a model with a recurrence has. They tell "unknown hybrid" from "plain attention".
_RECURRENT_SIGNS = (
    "linear_num_key_heads",
    "linear_attn_config",
    "linear_num_heads",
    "mamba_d_state",
    "mamba_n_heads",
    "mamba_num_heads",
    "ssm_state_size",
    "conv_L_cache",
    "state_size",
)


def read_model(values: Mapping[str, Any], where: str = "config.json") -> ModelShape:
    """The cache shape of the model that `values`, a parsed config.json, describes."""
    config = Fields(values, where)
    architectures = config.strings("architectures") or []
    model_type = config.text("model_type") or ""
    kind = next((_BY_ARCHITECTURE[a] for a in architectures if a in _BY_ARCHITECTURE), model_type)
    reader = _BY_TYPE.get(kind)
    text = config.part("text_config") or config
    if reader is None:
        raise _unknown(config, text, architectures, model_type)
    shape = reader(config, text, architectures[0] if architectures else model_type)
    if shape.recurrent_layers == 0:
        raise CheckpointError(
            f"{where}: {shape.family} config without a recurrent layer: vLLM serves it as a pure-attention model",
            hint="align mode and these checks don't concern it",
        )
    if shape.attention_layers == 0:
        raise CheckpointError(
            f"{where}: {shape.family} config without an attention layer: align mode needs one to size its blocks by"
        )
    return shape


def _unknown(config: Fields, text: Fields, architectures: list[str], model_type: str) -> CheckpointError:
    name = architectures[0] if architectures else model_type or "no architecture"
    kinds = set(text.strings("layer_types") or [])
    hybrid = any(text.has(sign) for sign in _RECURRENT_SIGNS) or bool(kinds & {"linear_attention", "mamba", "conv"})
    if not hybrid and (text.has("num_attention_heads") or text.has("n_head")):
        return CheckpointError(
            f"{config.where}: {name} is a pure-attention model: it has no recurrent state, so no align mode",
            hint="these checks are for models that mix attention with recurrent layers",
        )
    return CheckpointError(
        f"{config.where}: unknown architecture {name!r}",
        hint=f"known families are {FAMILIES}",
    )
