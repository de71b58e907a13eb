"""Print how far every config is from transformers: `python -m tests.reference.measure`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from tests.models.building import CONFIGS, Runner, prompt, runtimes
from tests.models.distances import Distance, mean_kl
from tests.reference import hf

LENGTHS = (65, 500, 2000)


def main() -> None:
    print("| config | runtime | tokens | float32 rms | float32 max | KL bf16 | KL transformers bf16 |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as root:
        for name in CONFIGS:
            folder = hf.save_text_model(Path(root) / name, name, dtype=torch.bfloat16)
            exact, rounded = hf.load(folder, torch.float32), hf.load(folder, torch.bfloat16)
            for runtime in runtimes(every=True):
                wide, narrow = Runner(folder, runtime), Runner(folder, runtime, "bfloat16")
                for length in LENGTHS if runtime != "numpy" else LENGTHS[:1]:
                    ids = prompt(wide.spec.vocab_size, length)
                    truth = hf.logits(exact, ids)
                    far = Distance.between(truth, wide.logits(ids))
                    ours, theirs = mean_kl(truth, narrow.logits(ids)), mean_kl(truth, hf.logits(rounded, ids))
                    numbers = f"{far.rms:.1e} | {far.largest:.1e} | {ours:.1e} | {theirs:.1e}"
                    print(f"| {name} | {runtime} | {length} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
