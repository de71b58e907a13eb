"""Write tests/models/golden: `python -m tests.reference.make_golden`.

Weights are not stored: they come from the recipe of `statemark.models.random_weights`, so a fixture holds only what
transformers made of them at a few positions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.models.building import prompt, write
from tests.models.distances import mean_kl
from tests.models.golden_values import CONFIGS, FOLDER, LENGTH, POSITIONS, SEED
from tests.reference import hf


def compute(name: str, root: Path) -> dict[str, np.ndarray]:
    """Logits of transformers' float32 forward, and what its bfloat16 forward loses at the same positions."""
    folder = write(root / name, name, seed=SEED, dtype="bfloat16")
    exact = hf.load(folder, torch.float32)
    ids = prompt(exact.config.vocab_size, LENGTH)
    logits = hf.logits(exact, ids)[POSITIONS]
    rounded = hf.logits(hf.load(folder, torch.bfloat16), ids)[POSITIONS]
    return {
        "logits": logits,
        "bfloat16_kl": np.float64(mean_kl(logits, rounded)),
        "made_with": np.str_(f"torch {torch.__version__}, transformers {transformers.__version__}"),
    }


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        for name in CONFIGS:
            np.savez_compressed(FOLDER / f"{name}.npz", **compute(name, Path(root)))


if __name__ == "__main__":
    main()
