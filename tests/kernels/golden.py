"""Digests of every kernel's output for fixed inputs: `python -m tests.kernels.golden` records them for this machine.

A digest changes when bits change: record anew only with a change that is meant to change bits, and say so in it. A
digest of one instruction set says nothing about another, except that the emulation of AVX-512 gives the hardware's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.kernels.inputs import ISAS, AttentionShape, GdnShape, Piece, batch, i32, matrix, runtime, uniform

FILE = Path(__file__).with_name("golden.json")


def digest(*arrays: np.ndarray) -> str:
    state = hashlib.sha256()
    for array in arrays:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()[:32]


def linear(isa: str, dtype: str, count: int) -> str:
    out = uniform(count, 75, seed=1)
    x, m = uniform(count, 601, seed=2), matrix(75, 601, dtype, seed=3)
    runtime(isa).linear(x, m, out, uniform(75, seed=4), True)
    return digest(out)


def rms_norm(isa: str) -> str:
    out = np.zeros((3, 77), np.float32)
    runtime(isa).rms_norm(uniform(3, 77, seed=5), uniform(77, seed=6), 1e-6, out)
    return digest(out)


def swiglu(isa: str) -> str:
    out = np.zeros((3, 77), np.float32)
    runtime(isa).swiglu(uniform(3, 154, seed=7, scale=16.0), out)
    return digest(out)


def top_logprobs(isa: str) -> str:
    return digest(*runtime(isa).top_logprobs(uniform(3, 777, seed=8, scale=8.0), 20, i32(5, 100, 776)))


def gated_delta_net(isa: str) -> str:
    shape = GdnShape(2, 4, 32, 72, 4)
    arena, proj = shape.arena(4), uniform(150, shape.proj_cols, seed=9, scale=2.0)
    out = np.zeros((150, shape.out_cols), np.float32)
    flat = batch([Piece(0, 150, -1, 0, 11, (), [(77, 1)])], np.arange(150, dtype=np.int32))
    runtime(isa).gated_delta_net(shape.layer, proj, flat, arena, out)
    return digest(out, arena.slot(0), arena.slot(1), arena.stamps)


def attention(isa: str, kv_dtype: str) -> str:
    shape = AttentionShape(7, 1, 40, 16, kv_dtype)
    length = 1100
    arena, proj = shape.arena(69), uniform(length, shape.proj_cols, seed=10, scale=2.0)
    out = np.zeros((length, shape.out_cols), np.float32)
    flat = batch([Piece(0, length, -1, 0, pages=tuple(range(69)))], np.zeros(length, np.int32))
    runtime(isa).attention(shape.layer, proj, *shape.tables(np.arange(length)), flat, arena, out)
    return digest(out, *(arena.page(i)[shape.page_offset :] for i in range(68)))


KERNELS: dict[str, Callable[[str], str]] = {
    "linear bfloat16 1": lambda isa: linear(isa, "bfloat16", 1),
    "linear bfloat16 70": lambda isa: linear(isa, "bfloat16", 70),
    "linear float32 1": lambda isa: linear(isa, "float32", 1),
    "linear float32 70": lambda isa: linear(isa, "float32", 70),
    "linear int8 1": lambda isa: linear(isa, "int8", 1),
    "linear int8 70": lambda isa: linear(isa, "int8", 70),
    "linear int4 1": lambda isa: linear(isa, "int4", 1),
    "linear int4 70": lambda isa: linear(isa, "int4", 70),
    "rms_norm": rms_norm,
    "swiglu": swiglu,
    "top_logprobs": top_logprobs,
    "gated_delta_net": gated_delta_net,
    "attention bfloat16": lambda isa: attention(isa, "bfloat16"),
    "attention float32": lambda isa: attention(isa, "float32"),
}


def recorded() -> dict[str, dict[str, str]]:
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {}


if __name__ == "__main__":
    known = recorded()
    known.update({isa: {name: kernel(isa) for name, kernel in KERNELS.items()} for isa in ISAS})
    FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    print("recorded", *ISAS)
