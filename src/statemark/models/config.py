"""config.json of a Qwen3.5 text model, parsed and checked.

Owns which keys are used, which are fixed by the kernels, and which may be ignored. Knows no weights and no kernels.
Missing keys get the defaults that transformers gives them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemark.errors import CheckpointError

TEXT_ARCHITECTURE = "Qwen3_5ForCausalLM"
MULTIMODAL_ARCHITECTURE = "Qwen3_5ForConditionalGeneration"
SUPPORTED_ARCHITECTURES = (TEXT_ARCHITECTURE, MULTIMODAL_ARCHITECTURE)

ATTENTION = "full_attention"
RECURRENT = "linear_attention"

# The vector kernels read a head's rows in steps of eight floats, and hold this many taps of a convolution.
DIMENSION_STEP = 8
MAX_CONV_WIDTH = 16

# quant_method in the quantization_config of folders with packed weights.
OWN_METHOD = "statemark"

# Keys whose only supported values are these: anything else would change the maths.
FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "quantization_config": (None,),
    "compression_config": (None,),
    "sliding_window": (None,),
    "use_sliding_window": (False, None),
    "mlp_only_layers": (None, []),
    "num_experts": (None, 0),
    "per_layer_config": (None, {}),
    "add_cross_attention": (False, None),
}

# Keys that this model reads, or that have no effect on the numbers of a text-only inference forward.
_USED = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "rope_parameters", "rope_scaling",
    "rope_theta", "partial_rotary_factor", "attention_bias", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "layer_types", "full_attention_interval",
    "eos_token_id", "mamba_ssm_dtype", "text_config",
}  # fmt: skip
_WITHOUT_EFFECT = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path",
    "initializer_range", "use_cache", "attention_dropout", "pad_token_id", "bos_token_id", "vision_config",
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "language_model_only",
    "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mtp_layer_types", "id2label", "label2id", "num_labels",
    "problem_type", "output_hidden_states", "output_attentions", "return_dict", "chunk_size_feed_forward",
    "is_encoder_decoder", "is_decoder", "cross_attention_hidden_size", "finetuning_task", "task_specific_params",
    "tokenizer_class", "prefix", "auto_map",
}  # fmt: skip
# mrope_*: sections for image grids; all three coordinates are equal for text.
_ROPE_USED = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """Every dimension of the text model. All are validated; nothing here is optional any more."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    attention_bias: bool
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    notices: tuple[str, ...] = ()

    @property
    def conv_dim(self) -> int:
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        return 2 * keys + self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def num_attention_layers(self) -> int:
        return self.layer_types.count(ATTENTION)

    @property
    def num_recurrent_layers(self) -> int:
        return self.layer_types.count(RECURRENT)


def read_config(folder: Path) -> TextConfig:
    """Parse `folder`/config.json."""
    return parse_config(read_json(folder / "config.json", "a model folder needs one"))


def read_json(path: Path, missing: str) -> dict[str, Any]:
    """A JSON object from a file of the model folder; `missing` says why the file is needed."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"no {path.name} in {path.parent}", hint=missing) from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} can't be read: {error}", hint="copy or download the file again") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds a {type(raw).__name__}, not an object")
    return raw


def parse_config(raw: Mapping[str, Any]) -> TextConfig:
    """Validate a config.json object, flat (text only) or with a nested `text_config`."""
    architecture = _architecture(raw)
    nested = raw.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise CheckpointError(f"config key text_config must be an object, got {nested!r}")
    text = raw if nested is None else nested
    reader = _Reader(text)
    for level in (raw,) if nested is None else (raw, nested):
        _check_fixed(level)

    head_dim = reader.positive("head_dim", 256)
    theta, rotary_dim = _rope(text, head_dim)
    heads, kv_heads = reader.positive("num_attention_heads", 16), reader.positive("num_key_value_heads", 4)
    key_heads, value_heads = reader.positive("linear_num_key_heads", 16), reader.positive("linear_num_value_heads", 32)
    _multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    _multiple("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    # Where both levels have it the outer one decides, as in transformers.
    tie = _Reader(raw).boolean("tie_word_embeddings", reader.boolean("tie_word_embeddings", False))
    config = TextConfig(
        architecture=architecture,
        vocab_size=reader.positive("vocab_size", 248320),
        hidden_size=reader.positive("hidden_size", 4096),
        intermediate_size=reader.positive("intermediate_size", 12288),
        layer_types=_layer_types(reader),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=theta,
        attention_bias=reader.boolean("attention_bias", False),
        linear_num_key_heads=key_heads,
        linear_num_value_heads=value_heads,
        linear_key_head_dim=reader.positive("linear_key_head_dim", 128),
        linear_value_head_dim=reader.positive("linear_value_head_dim", 128),
        linear_conv_kernel_dim=reader.positive("linear_conv_kernel_dim", 4),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        max_position_embeddings=reader.positive("max_position_embeddings", 32768),
        tie_word_embeddings=tie,
        eos_token_ids=token_ids("eos_token_id", text.get("eos_token_id", raw.get("eos_token_id"))),
        notices=tuple(_notices(raw, text)),
    )
    _check_kernel_dimensions(config)
    return config


def token_ids(key: str, value: Any) -> tuple[int, ...]:
    """One id, a list of them or null, as a tuple."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise CheckpointError(f"config key {key} must be a token id or a list of them, got {value!r}")
    return tuple(values)


def unsupported(key: str, value: Any, supported: str) -> CheckpointError:
    return CheckpointError(
        f"config key {key} has the unsupported value {value!r}",
        hint=f"supported: {supported}; anything else would change the model's numbers",
    )


class _Reader:
    """Typed access to one level of the config."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def positive(self, key: str, default: int) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"config key {key} must be a positive whole number, got {value!r}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"config key {key} must be true or false, got {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value <= 0:
            raise CheckpointError(f"config key {key} must be a positive number, got {value!r}")
        return float(value)


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures")
    if names is None:  # older folders name the kind only
        by_kind = {"qwen3_5_text": TEXT_ARCHITECTURE, "qwen3_5": MULTIMODAL_ARCHITECTURE}
        names = [by_kind.get(str(raw.get("model_type")), f"model_type {raw.get('model_type')!r}")]
    for name in names if isinstance(names, list) else [names]:
        if name in SUPPORTED_ARCHITECTURES:
            return str(name)
    raise CheckpointError(
        f"unsupported architecture: {', '.join(map(str, names)) if isinstance(names, list) else names}",
        hint=f"supported: {', '.join(SUPPORTED_ARCHITECTURES)}",
    )


def is_own_quantization(value: Any) -> bool:
    """Whether a quantization_config is what `statemark quantize` writes."""
    return isinstance(value, Mapping) and value.get("quant_method") == OWN_METHOD


def _check_fixed(level: Mapping[str, Any]) -> None:
    for key, allowed in FIXED.items():
        if key == "quantization_config" and is_own_quantization(level.get(key)):
            continue
        if key in level and not any(level[key] == value and type(level[key]) is type(value) for value in allowed):
            raise unsupported(key, level[key], " or ".join(repr(value) for value in allowed))


def _layer_types(reader: _Reader) -> tuple[str, ...]:
    count = reader.positive("num_hidden_layers", 32)
    given = reader.values.get("layer_types")
    if given is None:
        interval = reader.positive("full_attention_interval", 4)
        return tuple(ATTENTION if (i + 1) % interval == 0 else RECURRENT for i in range(count))
    if not isinstance(given, list):
        raise CheckpointError(f"config key layer_types must be a list, got {given!r}")
    for i, kind in enumerate(given):
        if kind not in (ATTENTION, RECURRENT):
            raise unsupported(f"layer_types[{i}]", kind, f"{ATTENTION!r} or {RECURRENT!r}")
    if len(given) != count:
        raise CheckpointError(f"config key layer_types names {len(given)} layers, but num_hidden_layers is {count}")
    return tuple(given)


def _rope(text: Mapping[str, Any], head_dim: int) -> tuple[float, int]:
    """(theta, rotated dimensions of a head). Inner values win over the older spelling beside them."""
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"config key rope_parameters must be an object, got {rope!r}")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise unsupported("rope_parameters.rope_type", kind, "'default'")
    for key in rope:
        if key not in _ROPE_USED:
            raise unsupported(f"rope_parameters.{key}", rope[key], ", ".join(sorted(_ROPE_USED)))
    both = _Reader({**text, **rope})
    theta = both.number("rope_theta", 10000.0)
    factor = both.number("partial_rotary_factor", 0.25)
    rotary_dim = int(head_dim * factor)
    if factor > 1.0 or rotary_dim < 2 or rotary_dim % 2:
        raise CheckpointError(
            f"config key partial_rotary_factor {factor} of head_dim {head_dim} rotates {rotary_dim} dimensions",
            hint="an even number of at least 2 and at most head_dim is needed",
        )
    return theta, rotary_dim


def _multiple(name: str, value: int, of_name: str, of: int) -> None:
    if value % of:
        raise CheckpointError(f"config key {name} = {value} is not a multiple of {of_name} = {of}")


def _check_kernel_dimensions(config: TextConfig) -> None:
    names = ["head_dim"] if config.num_attention_layers else []
    if config.num_recurrent_layers:
        names += ["linear_key_head_dim", "linear_value_head_dim"]
    for name in names:
        if getattr(config, name) % DIMENSION_STEP:
            raise unsupported(name, getattr(config, name), f"multiples of {DIMENSION_STEP}")
    if config.num_recurrent_layers and config.linear_conv_kernel_dim > MAX_CONV_WIDTH:
        raise unsupported("linear_conv_kernel_dim", config.linear_conv_kernel_dim, f"1 to {MAX_CONV_WIDTH}")


def _notices(raw: Mapping[str, Any], text: Mapping[str, Any]) -> list[str]:
    known = _USED | _WITHOUT_EFFECT | set(FIXED)
    strangers = sorted({k for level in (raw, text) for k, v in level.items() if k not in known and v})
    notices = []
    if strangers:
        notices.append(f"config keys not known here were ignored: {', '.join(strangers)}")
    state_dtype = text.get("mamba_ssm_dtype", "float32")
    if state_dtype != "float32":
        notices.append(f"mamba_ssm_dtype {state_dtype}: recurrent states are held in float32 all the same")
    return notices
