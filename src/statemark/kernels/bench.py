"""Kernel rates beside the machine's limits, on the shape of a 0.8B Qwen3.5: `statemark bench --kernels`.

Owns the sizes and the table. Times are the best of several runs, on all threads of one Runtime, by wall clock: on a
busy machine run it again. Limits are measured in the same process: products from registers, in the instructions that
weights of each type use, and reads of a 128 MiB matrix. A single layer's weights may sit in the last-level cache and
beat the read limit; "a step's linears" can't.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from statemark.kernels import PAGE, Arena, Attention, Batch, GatedDeltaNet, Matrix, Runtime

F32 = NDArray[np.float32]
HIDDEN, INTERMEDIATE, VOCAB = 1024, 3584, 65_536
GDN_HEADS, GDN_DIM, CONV_WIDTH = 16, 128, 4
HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM = 8, 2, 256, 64
LINEARS = {
    "recurrent in": (HIDDEN, 4 * GDN_HEADS * GDN_DIM + 2 * GDN_HEADS),
    "recurrent out": (GDN_HEADS * GDN_DIM, HIDDEN),
    "attention in": (HIDDEN, 2 * (HEADS + KV_HEADS) * HEAD_DIM),
    "gate and up": (HIDDEN, 2 * INTERMEDIATE),
    "down": (INTERMEDIATE, HIDDEN),
}
DTYPES = ("bfloat16", "int8", "int4")


@dataclass(frozen=True)
class Row:
    """One measurement. `of_products` and `of_reads` are shares of the machine's limits, 0 to 1."""

    kernel: str
    tokens: int
    milliseconds: float
    gflops: float
    of_products: float
    gbytes: float
    of_reads: float


class Bench:
    def __init__(self, rt: Runtime, repeats: int) -> None:
        self.rt, self.repeats = rt, repeats
        self.big = Matrix(VOCAB, HIDDEN)
        self._fill(self.big)
        self.products = {dtype: self._product_limit(dtype) for dtype in DTYPES}
        self.reads = self.big.nbytes / self._best(lambda: rt.read_memory(self.big)) / 1e9
        self.rows: list[Row] = []

    def _best(self, run: Callable[[], object]) -> float:
        """Seconds of the fastest run; more runs of what is short."""
        run()
        best, spent = float("inf"), 0.0
        for i in range(50 * self.repeats):
            begin = time.perf_counter()
            run()
            took = time.perf_counter() - begin
            best, spent = min(best, took), spent + took
            if i + 1 >= self.repeats and spent > 0.1 * self.repeats:
                break
        return best

    def _product_limit(self, dtype: str) -> float:
        done = [0.0]

        def run() -> None:
            done[0] = self.rt.peak_products(200_000, dtype)

        return self._best(run) and done[0] / self._best(run) / 1e9

    @staticmethod
    def _fill(m: Matrix) -> None:
        values = np.random.default_rng(0).standard_normal((m.rows, m.cols), dtype=np.float32)
        m.fill(0, values)

    @staticmethod
    def _uniform(*shape: int) -> F32:
        return np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)

    def add(
        self,
        kernel: str,
        tokens: int,
        flops: float,
        nbytes: float,
        run: Callable[[], object],
        dtype: str = "bfloat16",
    ) -> None:
        seconds = self._best(run)
        gflops, gbytes = flops / seconds / 1e9, nbytes / seconds / 1e9
        shares = gflops / self.products[dtype], gbytes / self.reads
        self.rows.append(Row(kernel, tokens, seconds * 1e3, gflops, shares[0], gbytes, shares[1]))

    def linear(self, name: str, m: Matrix, tokens: int) -> None:
        x, out = self._uniform(tokens, m.cols), np.empty((tokens, m.rows), np.float32)
        flops = 2.0 * tokens * m.rows * m.cols
        self.add(named("linear", m.dtype, name), tokens, flops, m.nbytes, lambda: self.rt.linear(x, m, out), m.dtype)

    def linears(self) -> None:
        for dtype in DTYPES:
            for name, (cols, rows) in LINEARS.items():
                m = Matrix(rows, cols, dtype)
                self._fill(m)
                for tokens in (1, 8, 64, 512):
                    self.linear(name, m, tokens)
        for tokens in (1, 8):
            self.linear("lm head", self.big, tokens)

    def step_linears(self, dtype: str) -> None:
        """All products of six layers one after another: 270 MB in bfloat16, as a decoding step meets them."""
        recurrent, full = ("recurrent in", "recurrent out"), ("attention in", "recurrent out")
        names = [n for mixer in (recurrent, recurrent, full) * 2 for n in (*mixer, "gate and up", "down")]
        matrices = [Matrix(LINEARS[n][1], LINEARS[n][0], dtype) for n in names]
        for m in matrices:
            self._fill(m)
        weights, values = sum(m.nbytes for m in matrices), sum(m.rows * m.cols for m in matrices)
        for tokens in (1, 2, 4, 8):
            x = {m.cols: self._uniform(tokens, m.cols) for m in matrices}
            out = {m.rows: np.empty((tokens, m.rows), np.float32) for m in matrices}

            def run(x: dict[int, F32] = x, out: dict[int, F32] = out) -> None:
                for m in matrices:
                    self.rt.linear(x[m.cols], m, out[m.rows])

            self.add(named("a step's", dtype, "linears"), tokens, 2.0 * tokens * values, weights, run, dtype)

    def gated_delta_net(self) -> None:
        width = GDN_HEADS * GDN_DIM
        zeros, one = np.zeros(GDN_HEADS, np.float32), np.ones(GDN_DIM, np.float32)
        sizes = (GDN_HEADS, GDN_HEADS, GDN_DIM, GDN_DIM, CONV_WIDTH)
        layer = GatedDeltaNet(0, 0, *sizes, 1e-6, self._uniform(3 * width, CONV_WIDTH), zeros, zeros, one)
        for tokens in (1, 8, 512):
            proj, out = self._uniform(tokens, 4 * width + 2 * GDN_HEADS), np.empty((tokens, width), np.float32)
            arena = Arena(64, 1, "float32", 1, layer.slot_floats, 1)
            batch = fresh_batch(tokens, 0)
            # per element of the state: two each for k.S, q.S and the update
            flops = 6.0 * tokens * width * GDN_DIM
            state_bytes = 8.0 * layer.slot_floats
            self.add(
                "gated_delta_net",
                tokens,
                flops,
                state_bytes,
                lambda p=proj, b=batch, a=arena, o=out: self.rt.gated_delta_net(layer, p, b, a, o),  # type: ignore[misc]
            )

    def attention(self) -> None:
        one = np.ones(HEAD_DIM, np.float32)
        layer = Attention(0, 0, HEADS, KV_HEADS, HEAD_DIM, ROTARY_DIM, 1e-6, one, one)
        for tokens, before in ((1, 512), (1, 8192), (1, 32768), (512, 0), (512, 8192), (512, 32256)):
            length = before + tokens
            arena = Arena(-(-length // PAGE), layer.page_elems, "bfloat16", 2, 1, 1)
            for page in range(arena.num_pages):
                arena.page(page)[:] = 0x3C00
            proj = self._uniform(tokens, 2 * (HEADS + KV_HEADS) * HEAD_DIM)
            out = np.empty((tokens, HEADS * HEAD_DIM), np.float32)
            positions = np.arange(before, length, dtype=np.int32)
            cos, sin = self.rt.rope_tables(positions, self._uniform(ROTARY_DIM // 2))
            batch = fresh_batch(tokens, before)
            flops = 4.0 * HEADS * HEAD_DIM * float((positions + 1.0).sum())
            nbytes = 2.0 * 2 * KV_HEADS * HEAD_DIM * length
            self.add(
                f"attention after {before}",
                tokens,
                flops,
                nbytes,
                lambda p=proj, b=batch, a=arena, o=out, c=cos, s=sin: self.rt.attention(layer, p, c, s, b, a, o),  # type: ignore[misc]
            )

    def elementwise(self) -> None:
        tokens = 512
        x, weight, out = (
            self._uniform(tokens, HIDDEN),
            np.ones(HIDDEN, np.float32),
            np.empty((tokens, HIDDEN), np.float32),
        )
        self.add("rms_norm", tokens, 4.0 * x.size, 8.0 * x.size, lambda: self.rt.rms_norm(x, weight, 1e-6, out))
        both, half = self._uniform(tokens, 2 * INTERMEDIATE), np.empty((tokens, INTERMEDIATE), np.float32)
        self.add("swiglu", tokens, 25.0 * half.size, 12.0 * half.size, lambda: self.rt.swiglu(both, half))
        logits, targets = self._uniform(8, VOCAB), np.zeros(8, np.int32)
        self.add(
            "top_logprobs", 8, 20.0 * logits.size, 16.0 * logits.size, lambda: self.rt.top_logprobs(logits, 20, targets)
        )


def named(kind: str, dtype: str, name: str) -> str:
    return f"{kind} {name}" if dtype == "bfloat16" else f"{kind} {dtype} {name}"


def fresh_batch(tokens: int, before: int) -> Batch:
    """One sequence with `before` tokens behind it. A state from position 0 needs no stamp."""
    pages = np.arange(-(-(before + tokens) // PAGE), dtype=np.int32)[None]
    count, position = np.array([0, tokens], np.int32), np.array([before], np.int32)
    state_in, state_out = np.array([0 if before else -1], np.int32), np.zeros(1, np.int32)
    nothing = np.zeros((0, 3), np.int32)
    ids = np.zeros(tokens, np.int32)
    return Batch(ids, count, position, np.zeros(1, np.uint64), state_in, state_out, nothing, pages)


def measure(rt: Runtime, repeats: int) -> Bench:
    bench = Bench(rt, repeats)
    bench.linears()
    for dtype in DTYPES:
        bench.step_linears(dtype)
    bench.gated_delta_net()
    bench.attention()
    bench.elementwise()
    return bench


def table(bench: Bench) -> str:
    rt = bench.rt
    lines = [
        f"{rt.isa}, {rt.threads} threads: reads {bench.reads:.1f} GB/s, products "
        + ", ".join(f"{dtype} {rate:.1f}" for dtype, rate in bench.products.items())
        + " GFLOP/s",
        f"{'kernel':<28}{'tokens':>7}{'ms':>10}{'GFLOP/s':>10}{'of limit':>9}{'GB/s':>8}{'of limit':>9}",
    ]
    lines += [
        f"{r.kernel:<28}{r.tokens:>7}{r.milliseconds:>10.3f}{r.gflops:>10.1f}{r.of_products:>9.0%}"
        f"{r.gbytes:>8.1f}{r.of_reads:>9.0%}"
        for r in bench.rows
    ]
    return "\n".join(lines)


def as_json(bench: Bench) -> str:
    limits = {"isa": bench.rt.isa, "threads": bench.rt.threads, "gflops": bench.products, "gbytes": bench.reads}
    return json.dumps({"limits": limits, "rows": [asdict(row) for row in bench.rows]}, sort_keys=True)
