"""Write a model folder with packed int8 or int4 weights, to be loaded by mapping. Owns what goes into the folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from statemark import kernels
from statemark.errors import CheckpointError, ConfigurationError
from statemark.models.backend import MatrixLike
from statemark.models.checkpoint import Checkpoint
from statemark.models.config import OWN_METHOD, read_config, read_json
from statemark.models.hub import resolve_model_folder
from statemark.models.loader import settle_tied
from statemark.models.quantization import QUANTIZATIONS, check_quantization
from statemark.models.qwen3_5 import Builder, expected_tensors
from statemark.models.stored import STORED, Packed, write_stored
from statemark.models.weights import CheckpointWeights

# Beside the weights: configs, tokenizer, templates.
_KEPT = ("*.json", "*.jinja")


@dataclass(frozen=True)
class QuantizedModel:
    path: Path
    source_bytes: int
    weight_bytes: int
    notices: list[str]


class _Kept:
    """Weights that remember what they were asked for, so that it can be written."""

    def __init__(self, weights: CheckpointWeights) -> None:
        self._weights = weights
        self.matrices: dict[Packed, NDArray[np.uint8]] = {}
        self.vectors: dict[str, NDArray[np.float32]] = {}

    @property
    def weight_bytes(self) -> int:
        return self._weights.weight_bytes

    def matrix(self, *names: str) -> MatrixLike:
        matrix = self._weights.matrix(*names)
        assert isinstance(matrix, kernels.Matrix)
        self.matrices[Packed(names, matrix.dtype, matrix.rows, matrix.cols)] = matrix.packed
        return matrix

    def vector(self, name: str) -> NDArray[np.float32]:
        self.vectors[name] = self._weights.vector(name)
        return self.vectors[name]


def quantize_model(
    source: str | Path,
    out: Path,
    quantization: str,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> QuantizedModel:
    """Quantize a model folder (or hub id) into a new folder. `progress` gets (stage, bytes done, bytes in all)."""
    check_quantization(quantization, "auto")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not an empty folder", hint="name a new folder")
    folder = resolve_model_folder(source)
    if (folder / STORED).is_file():
        raise CheckpointError(
            f"{folder} is quantized already", hint=f"{' and '.join(QUANTIZATIONS)} are made of the original checkpoint"
        )
    config = read_config(folder)
    checkpoint = Checkpoint(folder, lambda done, total: progress("quantizing", done, total))
    notices = [*config.notices, *checkpoint.notices]
    config = settle_tied(config, checkpoint, notices)
    checkpoint.check(expected_tensors(config))
    kept = _Kept(CheckpointWeights(checkpoint, kernels, quantization))  # type: ignore[arg-type]
    Builder(config, kept, kernels).build()  # type: ignore[arg-type]
    checkpoint.check_finite()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted({file for pattern in _KEPT for file in folder.glob(pattern)}):
            if file.name != "config.json" and not file.name.endswith(".index.json"):
                shutil.copyfile(file, out / file.name)
        write_stored(
            out / STORED,
            kept.matrices,
            kept.vectors,
            quantization=quantization,
            source=checkpoint.content_digest(),
            progress=lambda done, total: progress("writing", done, total),
        )
        raw = read_json(folder / "config.json", "")
        raw["quantization_config"] = {"quant_method": OWN_METHOD, "quantization": quantization}
        # Last, so that a folder with a config.json is a whole one.
        (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"can't write {out}: {error.strerror}", hint="choose a place with room") from error
    source_bytes = sum(map(checkpoint.nbytes, checkpoint.names))
    return QuantizedModel(out, source_bytes, kept.weight_bytes, notices)
