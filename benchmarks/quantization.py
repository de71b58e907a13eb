"""How far quantised weights move a model's predictions: mean KL divergence to its own float32 logits, over a text.

    python benchmarks/quantization.py MODEL                                   # float32 against bfloat16, int8 and int4
    python benchmarks/quantization.py MODEL --tokens 50000 --gguf Q8_0.gguf --gguf Q4_K_M.gguf

The text is the language reference that comes with Python (pydoc_data), in windows of 512 tokens. A GGUF file of the
same model is measured by its weights alone: they are dequantised to float32 and run here, so what llama.cpp's rounding
of activations adds is left out, in its favour. Needs the package gguf for that.
"""

from __future__ import annotations

import argparse
import json
import pydoc_data.topics
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from statemark.kernels import Arena, Batch, Runtime
from statemark.kernels.reference import bf16_values
from statemark.models import load_model, load_tokenizer
from statemark.models.safetensors_file import SafetensorsFile

WINDOW = 512
# GGUF's names of the matrices; the rest is stored there in float32, partly transformed, and stays as it is here.
MATRICES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_out": "linear_attn.out_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def windows(folder: Path, count: int) -> list[np.ndarray]:
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = np.array(load_tokenizer(folder).encode(text[: 16 * count]), dtype=np.int32)[:count]
    if len(ids) < count:
        raise SystemExit(f"error: the text has {len(ids)} tokens, {count} are asked for")
    return [ids[i : i + WINDOW] for i in range(0, count, WINDOW)]


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    """Logits float32 [tokens, vocabulary] of a window on its own."""
    spec = model.spec
    pages = np.arange(-(-len(ids) // 16), dtype=np.int32)[None]
    arena = Arena(
        pages.size, spec.page_elems, spec.kv_dtype, 1, max(spec.slot_floats, 1), max(spec.num_recurrent_layers, 1)
    )
    zero, nothing = np.zeros(1, np.int32), np.zeros((0, 3), np.int32)
    ends = np.array([0, len(ids)], np.int32)
    batch = Batch(ids, ends, zero, np.zeros(1, np.uint64), zero - 1, zero, nothing, pages)
    hidden = model.forward(batch, ids, np.arange(len(ids), dtype=np.int32), arena)
    result: np.ndarray = model.logits(np.array(hidden))
    return result


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(axis=1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def dequantised(folder: Path, gguf_file: Path, out: Path) -> None:
    """The folder's model with the matrices that a GGUF file holds, in float32."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    stored = SafetensorsFile(folder / "model.safetensors")
    tensors = {}
    for name in stored.tensors:
        raw = stored.array(name)
        tensors[name] = bf16_values(raw.astype(np.uint16)) if raw.dtype == np.uint16 else raw.astype(np.float32)
    replaced = 0
    for tensor in GGUFReader(gguf_file).tensors:
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name)
        if not found or found[2] not in MATRICES:
            continue
        name = MATRICES[found[2]] + ".weight"
        name = name if found[1] is None else f"model.layers.{found[1]}.{name}"
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(tensors[name].shape)
        off = float(np.sqrt(np.mean((values - tensors[name]) ** 2)) / tensors[name].std())
        if off > 0.2:
            raise SystemExit(f"error: {tensor.name} is not {name}: they differ by {off:.0%}")
        tensors[name], replaced = values, replaced + 1
    matrices = sum(values.ndim == 2 for values in tensors.values())
    if replaced != matrices:
        raise SystemExit(f"error: {gguf_file.name} has {replaced} of the model's {matrices} matrices")
    save_file(tensors, out / "model.safetensors")


def candidates(folder: Path, ggufs: list[Path], runtime: Runtime, scratch: Path) -> Iterator[tuple[str, Any, float]]:
    """(name, model, bytes of weights)."""
    for name, options in (("bfloat16", {}), ("int8", {"quantization": "int8"}), ("int4", {"quantization": "int4"})):
        model = load_model(folder, runtime=runtime, **options)
        yield name, model, model.spec.weight_bytes
    for file in ggufs:
        dequantised(folder, file, scratch / file.stem)
        model = load_model(scratch / file.stem, runtime=runtime, dtype="float32")
        yield f"{file.stem} (weights only)", model, file.stat().st_size
        shutil.rmtree(scratch / file.stem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--gguf", type=Path, action="append", default=[])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    runtime = Runtime()
    parts = windows(args.model, args.tokens)
    exact = load_model(args.model, runtime=runtime, dtype="float32")
    rows = {}
    # Logits of the float32 model are computed anew for each candidate: kept, they would take gigabytes.
    with tempfile.TemporaryDirectory() as scratch:
        for name, model, nbytes in candidates(args.model, args.gguf, runtime, Path(scratch)):
            total, agree = 0.0, 0
            for number, ids in enumerate(parts, 1):
                p, q = (log_softmax(logits(m, ids).astype(np.float64)) for m in (exact, model))
                total += float((np.exp(p) * (p - q)).sum())
                agree += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
                print(f"\r{name}: {number} of {len(parts)} windows", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
            rows[name] = {"kl": total / args.tokens, "same_best": agree / args.tokens, "bytes": nbytes}
    if args.json:
        print(json.dumps({"tokens": args.tokens, "rows": rows}, sort_keys=True))
        return
    print(f"{'':<34}{'KL, nats':>12}{'same best':>12}{'MB':>9}")
    for name, row in rows.items():
        print(f"{name:<34}{row['kl']:>12.6f}{row['same_best']:>12.2%}{row['bytes'] / 1e6:>9.1f}")


if __name__ == "__main__":
    main()
