"""Speculative decoding of hybrid models on a CPU: what vLLM 0.32 leaves to two Triton kernels, as copies by address.

vLLM registers CPU versions of its other kernels and has none of these; without them its worker fails as soon as a state
moves to another block. Semantics as in the kernels' own comments: a convolution's window is shifted by the accepted
tokens, a recurrent state is taken from the column of the last accepted one. Beside them the example connector for
extracted hidden states, whose copy to a file needs a GPU: it drops them here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

_MODULE = "vllm.v1.worker.mamba_utils"


def register() -> None:
    """Before the engine is built, in the process in which its worker runs."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import example_hidden_states_connector as hidden
    from vllm.triton_utils.dispatcher import register_kernels

    register_kernels(
        {
            f"{_MODULE}.precopy_mamba_align_fused_kernel": _before_step,
            f"{_MODULE}.postprocess_mamba_fused_kernel": _after_step,
        }
    )
    hidden.ExampleHiddenStatesConnector._submit_async_write = _drop


def _drop(connector: Any, pending: Any) -> None:
    connector._req_copy_events[pending.req_id] = SimpleNamespace(query=lambda: True)


@dataclass
class _States:
    """Where each layer's states lie: the kernels' metadata, in their order."""

    tables: Any
    table_stride: int
    base: Any
    block_stride: Any
    element: Any
    inner: Any
    width: Any
    group: Any
    rows: Any
    row_stride: Any

    def copy(self, request: int, source: int, target: int, bias: int, *, by_row: bool) -> None:
        """From block column `source` of a request to `target`, `bias` tokens further on; in every layer."""
        for n in range(len(self.base)):
            table = int(self.tables[int(self.group[n])]) + 4 * request * self.table_stride
            element, inner, width = int(self.element[n]), int(self.inner[n]), int(self.width[n])
            recurrent = width == 0
            start = self._block(n, table, source + bias if recurrent else source)
            end = self._block(n, table, target)
            if recurrent:
                ctypes.memmove(end, start, inner * element)
                continue
            unit = (1 if by_row else inner) * element
            for row in range(int(self.rows[n])) if by_row else (0,):
                skip = row * int(self.row_stride[n])
                ctypes.memmove(end + skip, start + skip + bias * unit, (width - bias) * unit)

    def _block(self, n: int, table: int, column: int) -> int:
        block = ctypes.c_int32.from_address(table + 4 * column).value
        return int(self.base[n]) + block * int(self.block_stride[n])


def _requests(mapping: Any, count: int) -> Iterator[int]:
    yield from range(count) if mapping is None else (int(i) for i in mapping[:count] if i >= 0)


def _before_step(state_column: Any, source_column: Any, bias: Any, *rest: Any, **options: Any) -> None:
    """A request whose step writes to another block column starts it from the state of the former one."""
    *metadata, mapping, count = rest
    states = _States(*metadata)
    for request in _requests(mapping, count):
        source, target = int(source_column[request]), int(state_column[request])
        if source >= 0 and source != target:
            states.copy(request, source, target, int(bias[request]), by_row=options["CONV_STATE_DIM_FIRST"])


def _after_step(
    accepted: Any, state_column: Any, scheduled: Any, computed: Any, drafts: Any, *rest: Any, **options: Any
) -> None:
    """Where accepted drafts pass a block's end, the state at that end is put into the block."""
    *metadata, accepted_out, mapping, count = rest
    states, block = _States(*metadata), options["block_size"]
    for request in _requests(mapping, count):
        kept = int(accepted[request])
        running = int(computed[request]) + int(scheduled[request]) - int(drafts[request])
        boundary = (running + kept - 1) // block * block
        if boundary < running:
            continue
        source, target, bias = int(state_column[request]), boundary // block - 1, boundary - running
        if source == target:
            accepted_out[request] = 1
        if source != target or bias:
            states.copy(request, source, target, bias, by_row=options["CONV_STATE_DIM_FIRST"])
