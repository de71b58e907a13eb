"""Random weights in which the recurrent state matters: what a prompt said hundreds of tokens ago moves the answer.

vLLM's dummy weights forget a token within ten others and leave sums that don't depend on the order of their terms; with
them a wrong state is invisible.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write(folder: str | Path, config: dict[str, Any]) -> Any:
    """A checkpoint of this config under `folder`, float32 weights stored as bfloat16; returns the model."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path = Path(folder, "config.json")
    path.write_text(json.dumps(config))
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(str(folder)), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter)
    model.to(torch.bfloat16).save_pretrained(str(folder))
    path.write_text(json.dumps(config))  # the one that vLLM reads; transformers' own has other names in it
    if config.get("mtp_num_hidden_layers"):
        _add_draft_module(Path(folder, "model.safetensors"))
    return model


def _add_draft_module(path: Path) -> None:
    """A module for multi-token prediction, which transformers leaves out: its layer is the model's last one."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    prefix = f"model.layers.{last}."
    own = {f"mtp.layers.0.{n.removeprefix(prefix)}": t.clone() for n, t in tensors.items() if n.startswith(prefix)}
    size = tensors["model.norm.weight"].numel()
    own["mtp.fc.weight"] = torch.cat([torch.eye(size), torch.eye(size)], dim=1).to(torch.bfloat16)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        own[f"mtp.{name}.weight"] = torch.zeros(size, dtype=torch.bfloat16)
    save_file({**tensors, **own}, path, metadata={"format": "pt"})


def _fill(name: str, parameter: Any) -> None:
    import torch

    if name.endswith("A_log"):  # a state loses a half in 60 to 1,500 tokens
        parameter.copy_(torch.linspace(-7.5, -4.5, parameter.numel()))
    elif name.endswith("dt_bias"):
        parameter.fill_(0.5)
    elif name.endswith("linear_attn.norm.weight"):
        parameter.fill_(1.0)
    elif parameter.dim() == 1:
        parameter.zero_()  # norms here multiply by 1 + weight
    elif "embed_tokens" in name:
        parameter.normal_(0.0, 0.3)  # tied with the head: a token is likely to follow itself, and drafts are accepted
    elif "conv1d" in name:
        parameter.normal_(0.0, 0.4)
    else:
        parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
