"""Random-weight models of transformers, saved the way it saves them, and their uncached full forward."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from statemark.models.random_weights import levels, table
from tests.models.building import config_of

# These models are small: threads that wait for each other cost more than they bring, above all on a busy machine.
torch.set_num_threads(1)

# The multimodal wrapper's smallest vision part; its output width must be the text model's.
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "num_position_embeddings": 16,
}


def fill(model: torch.nn.Module, seed: int) -> None:
    """Give every text parameter its spread: trained models have non-trivial norms, biases and decays."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            plain = name.replace("model.language_model.", "model.")
            count = math.prod(parameter.shape)
            values = table(plain, tuple(parameter.shape))[np.concatenate(list(levels(seed, plain, count)))]
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape).to(parameter.dtype))


def save_text_model(folder: Path, name: str, *, dtype: torch.dtype, seed: int = 3, shards: str | None = None) -> Path:
    """A `Qwen3_5ForCausalLM` through save_pretrained."""
    config = transformers.Qwen3_5TextConfig(**_settings(name))
    model = transformers.Qwen3_5ForCausalLM(config).to(dtype)
    fill(model, seed)
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return folder


def save_multimodal_model(folder: Path, name: str, *, dtype: torch.dtype, seed: int = 3) -> Path:
    """A `Qwen3_5ForConditionalGeneration` through save_pretrained, with an mtp head added to the file."""
    text = _settings(name)
    vision = {**VISION, "out_hidden_size": text["hidden_size"]}
    tied = text["tie_word_embeddings"]
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tied)
    model = transformers.Qwen3_5ForConditionalGeneration(config).to(dtype)
    fill(model, seed)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["mtp.fc.weight"] = torch.ones(4, 4, dtype=dtype)
    tensors["mtp.layers.0.mlp.up_proj.weight"] = torch.ones(4, 4, dtype=dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


def _settings(name: str) -> dict[str, Any]:
    return {k: v for k, v in config_of(name).items() if k not in ("architectures", "model_type")}


def load(folder: Path, dtype: torch.dtype, kind: str = "AutoModelForCausalLM") -> Any:
    model = getattr(transformers, kind).from_pretrained(folder, dtype=dtype)
    return model.eval()


def logits(model: Any, ids: list[int]) -> np.ndarray:
    """The full forward without a cache, in float32 on the way out."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    result: np.ndarray = out.float().numpy()
    return result
