"""Types of the compiled module. Arrays are never converted: a wrong dtype is a TypeError, a bad shape a ValueError."""

from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
DType = Literal["bfloat16", "float32"]
Packing = Literal["bfloat16", "float32", "int8", "int4"]

PAGE: Final[int]
PANEL: Final[int]

def available_isas() -> list[str]:
    """Instruction sets that this build and machine can run, best first."""

class Matrix:
    """Weights [rows, cols], packed in panels of 32 rows. int8 and int4 have a scale for each 64 or 32 columns of a row.

    `packed`: the `packed` bytes of an equal matrix, from a file for instance. They are used where they are.
    """

    def __init__(
        self, rows: int, cols: int, dtype: str = "bfloat16", packed: NDArray[np.uint8] | None = None
    ) -> None: ...
    def fill(self, row: int, w: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]) -> int:
        """Convert and pack rows from `row` on; uint16 holds bfloat16 bits. Returns how many values are not finite.

        Several threads may fill different rows at once; the interpreter lock is released.
        """

    def to_float32(self) -> F32: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def dtype(self) -> Packing: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def packed(self) -> NDArray[np.uint8]:
        """A read-only view of all bytes, in the layout of the kernels."""

class Arena:
    """Pages of keys and values and slots of recurrent state; memory is committed when it is written."""

    check_stamps: bool
    def __init__(
        self, num_pages: int, page_elems: int, kv_dtype: str, num_slots: int, slot_floats: int, num_stamps: int
    ) -> None: ...
    def release_page(self, i: int) -> None: ...
    def release_slot(self, i: int) -> None:
        """Give the memory back; the slot's stamps become (0, 0), which no continuing sequence matches."""

    def copy_page(self, src: int, dst: int) -> None: ...
    def copy_slot(self, src: int, dst: int) -> None:
        """Copy the state and its stamps."""

    def page(self, i: int) -> NDArray[np.uint16] | NDArray[np.float32]: ...
    def slot(self, i: int) -> F32: ...
    @property
    def stamps(self) -> U64:
        """A view [num_slots, num_stamps, 2]: tokens consumed, rolling hash."""

    @property
    def num_pages(self) -> int: ...
    @property
    def page_elems(self) -> int: ...
    @property
    def kv_dtype(self) -> DType: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def slot_floats(self) -> int: ...
    @property
    def num_stamps(self) -> int: ...

class Batch:
    """A flat batch of tokens. Arrays are copied and checked; what one sequence writes no other may touch."""

    def __init__(
        self,
        token_ids: I32,
        seq_start: I32,
        seq_position: I32,
        seq_hash: U64,
        state_in: I32,
        state_out: I32,
        marks: I32,
        page_table: I32,
    ) -> None: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_seqs(self) -> int: ...
    @property
    def end_hash(self) -> list[int]:
        """The rolling hash of each sequence after its last token."""

    @property
    def mark_hash(self) -> list[int]:
        """The rolling hash at each mark."""

class GatedDeltaNet:
    def __init__(
        self,
        index: int,
        slot_offset: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        conv_width: int,
        eps: float,
        conv_weight: F32,
        a_log: F32,
        dt_bias: F32,
        norm_weight: F32,
    ) -> None: ...
    @property
    def index(self) -> int: ...
    @property
    def conv_dim(self) -> int: ...
    @property
    def slot_floats(self) -> int: ...

class Attention:
    def __init__(
        self,
        index: int,
        page_offset: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        eps: float,
        q_norm: F32,
        k_norm: F32,
    ) -> None: ...
    @property
    def index(self) -> int: ...
    @property
    def page_elems(self) -> int: ...

class Runtime:
    """Threads, scratch memory and an instruction set. Serves one call at a time; several may exist."""

    def __init__(self, threads: int = 0, isa: str | None = None) -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def linear(self, x: F32, m: Matrix, out: F32, bias: F32 | None = None, accumulate: bool = False) -> None: ...
    def embed(self, ids: I32, m: Matrix, out: F32) -> None: ...
    def rms_norm(self, x: F32, weight: F32, eps: float, out: F32) -> None: ...
    def swiglu(self, gate_up: F32, out: F32) -> None: ...
    def rope_tables(self, positions: I32, inv_freq: F32) -> tuple[F32, F32]: ...
    def top_logprobs(self, logits: F32, n: int, targets: I32) -> tuple[I32, F32, F32, I32]:
        """(top ids, their log-probabilities, the targets' log-probabilities, the targets' ranks from 1).

        NaN counts as minus infinity; where the largest logit is infinite, ids that reach it share the probability.
        """

    def argmax(self, logits: F32) -> I32: ...
    def gated_delta_net(self, gdn: GatedDeltaNet, proj: F32, batch: Batch, arena: Arena, out: F32) -> None: ...
    def attention(
        self, att: Attention, proj: F32, cos: F32, sin: F32, batch: Batch, arena: Arena, out: F32
    ) -> None: ...
    def peak_products(self, rounds: int, dtype: str) -> float:
        """For benchmarks: multiply-adds from registers on all threads, in the instructions that products with weights
        of this dtype use. Returns the operations done, two a multiply-add.
        """

    def read_memory(self, m: Matrix) -> None:
        """For benchmarks: read all whole MiB of a matrix once."""
