"""Writes a training checkpoint as the bundled model: `python -m training.export [--checkpoint last]`.

bfloat16 weights, except what the recurrence raises to a power (A_log, dt_bias: a few floats); two configurations.
"""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.evaluate import RUN
from training.model import Model
from training.rows import BUNDLED, load_tokenizer
from training.shape import Shape

LIMIT = 10_000_000


def export(model: Model, folder: Path) -> int:
    tokenizer = load_tokenizer()
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    keep = ("A_log", "dt_bias")
    weights = {
        name: tensor if name.endswith(keep) else tensor.to(torch.bfloat16)
        for name, tensor in model.to_published().items()
    }
    path = folder / "model.safetensors"
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)
    config = model.s.to_config(eos_token_id=end, pad_token_id=pad, bos_token_id=None, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    size = path.stat().st_size
    if size > LIMIT:
        raise SystemExit(
            f"error: {path} has {size:,} bytes, more than {LIMIT:,}\n\nhint: a smaller hidden size or vocabulary"
        )
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", default="last")
    a = parser.parse_args()
    saved = torch.load(RUN / f"{a.checkpoint}.pt")
    model = Model(Shape(**saved["shape"]))
    model.load_state_dict(saved["model"])
    size = export(model, BUNDLED)
    print(f"step {saved['step']}, {saved['book']['tokens']:,} training tokens: {size:,} bytes in {BUNDLED}")


if __name__ == "__main__":
    main()
