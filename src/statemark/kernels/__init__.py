"""The kernels: exact, threaded, one row never depending on another. Owns arithmetic and memory layout.

Knows nothing of models, requests or caches. `_core` is compiled from csrc/; `reference` says what each kernel means.
"""

from __future__ import annotations

from statemark.kernels._core import (
    PAGE,
    PANEL,
    Arena,
    Attention,
    Batch,
    GatedDeltaNet,
    Matrix,
    Runtime,
    available_isas,
)

__all__ = [
    "PAGE",
    "PANEL",
    "Arena",
    "Attention",
    "Batch",
    "GatedDeltaNet",
    "Matrix",
    "Runtime",
    "available_isas",
]
