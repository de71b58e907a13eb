"""A checkpoint's twin with linear-attention keys as wide as its values, which is the only width llama.cpp can load.

Zeros are added to queries and keys, so products of the two stay what they were. Outputs of a head shrink by the square
root of the ratio of widths, because queries are scaled by it, and the norm behind them undoes that; its epsilon shrinks
along. No other weight changes, and zeros quantise to zeros, so a quantised twin is the quantised model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np


def loadable(model: Path, scratch: Path) -> Path:
    """The model itself where its widths agree, else its twin in `scratch`."""
    config: dict[str, Any] = json.loads((model / "config.json").read_text())
    keys, values = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if keys == values:
        return model
    if keys > values:
        raise SystemExit(f"error: keys of {keys} are wider than values of {values}: llama.cpp can't load {model.name}")
    from safetensors.numpy import save_file

    from statemark.kernels.reference import bf16_values
    from statemark.models.safetensors_file import SafetensorsFile

    twin = scratch / model.name
    shutil.copytree(model, twin, ignore=shutil.ignore_patterns("*.safetensors"))
    stored = SafetensorsFile(model / "model.safetensors")
    tensors = {}
    for name in stored.tensors:
        raw = stored.array(name)
        whole = bf16_values(raw.astype(np.uint16)) if raw.dtype == np.uint16 else raw.astype(np.float32)
        if name.endswith(("in_proj_qkv.weight", "linear_attn.conv1d.weight")):
            whole = _widened(whole, config["linear_num_key_heads"], keys, values)
        tensors[name] = np.ascontiguousarray(whole)
    save_file(tensors, twin / "model.safetensors")
    config |= {"linear_key_head_dim": values, "rms_norm_eps": config["rms_norm_eps"] * keys / values}
    (twin / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return twin


def _widened(rows: np.ndarray, heads: int, keys: int, values: int) -> np.ndarray:
    """Rows of queries, keys and values; zeros go behind the `keys` rows of each head of the first two."""
    count = heads * keys
    both = rows[: 2 * count].reshape(2 * heads, keys, *rows.shape[1:])
    padding = [(0, 0), (0, values - keys), *[(0, 0)] * (rows.ndim - 1)]
    wide = np.pad(both, padding).reshape(2 * heads * values, *rows.shape[1:])
    return np.concatenate([wide, rows[2 * count :]])
