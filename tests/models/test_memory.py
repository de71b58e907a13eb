"""Loading holds one copy: the packed one. Measured in a process of its own, on a model of a few hundred megabytes."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from statemark.models.checkpoint import SINGLE, Checkpoint
from tests.models.building import write

SLACK = 40 << 20

# Resets the process's peak, loads, and prints by how much the peak rose and what was packed.
PROBE = """
import sys
from statemark.kernels import Runtime
from statemark.models import load_model

def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) * 1024

runtime = Runtime()
open("/proc/self/clear_refs", "w").write("5")
before = status("VmHWM")
model = load_model(sys.argv[1], runtime=runtime, dtype=sys.argv[2])
print(status("VmHWM") - before, model.spec.weight_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_peak_is_the_packed_size_and_little_more(tmp_path: Path, dtype: str) -> None:
    folder = write(
        tmp_path / "m",
        dtype="bfloat16",
        vocab_size=30_000,
        hidden_size=1024,
        intermediate_size=8192,
        tie_word_embeddings=False,
    )
    checkpoint = Checkpoint(folder)
    largest = max(math.prod(checkpoint.shape(name)) for name in checkpoint.names) * (2 if dtype == "bfloat16" else 4)
    stored = (folder / SINGLE).stat().st_size
    assert stored > 200 << 20
    assert stored > 1.5 * (largest + SLACK)  # a second copy could not hide in the allowance
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(folder), dtype], capture_output=True, text=True, check=True, timeout=600
    )
    risen, packed = map(int, done.stdout.split())
    assert packed > 0.99 * stored
    assert risen < packed + largest + SLACK
