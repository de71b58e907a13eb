"""The recurrent kernel: any cut of a sequence, any mates, any thread count give the same bits; errors are bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.kernels import Arena, GatedDeltaNet
from tests.kernels import float64
from tests.kernels.inputs import F32, ISAS, GdnShape, Piece, batch, rolled, runtime, uniform

SHAPES = [
    GdnShape(),
    GdnShape(1, 1, 8, 8, 1),  # no convolution window at all
    GdnShape(2, 2, 32, 32, 2),
    GdnShape(1, 3, 24, 72, 3),  # three strips, the last of 8 columns
    GdnShape(2, 4, 128, 128, 4),
]
SEED = 77


Marks = list[tuple[int, int]]  # offset, slot


@dataclass
class World:
    """One arena, one sequence's inputs and tokens; runs pieces of it and keeps what comes out."""

    shape: GdnShape
    isa: str
    length: int
    seed: int = 1
    threads: int = 1
    slots: int = 24

    def __post_init__(self) -> None:
        self.arena: Arena = self.shape.arena(self.slots)
        self.layer: GatedDeltaNet = self.shape.layer
        self.proj = uniform(self.length, self.shape.proj_cols, seed=self.seed, scale=2.0)
        self.tokens = (np.arange(self.length, dtype=np.int32) * 37 + self.seed) % 1000

    def piece(self, position: int, count: int, state_in: int, state_out: int, marks: Marks) -> Piece:
        value = rolled(SEED + self.seed, self.tokens[:position])
        return Piece(position, count, state_in if position else -1, state_out, value, (), marks)

    def run(
        self,
        position: int,
        count: int,
        state_in: int = 0,
        state_out: int = 0,
        marks: Marks | None = None,
    ) -> F32:
        rows = slice(position, position + count)
        out = np.full((count, self.shape.out_cols), np.nan, np.float32)
        b = batch([self.piece(position, count, state_in, state_out, marks or [])], self.tokens[rows])
        runtime(self.isa, self.threads).gated_delta_net(self.layer, self.proj[rows], b, self.arena, out)
        return out

    def state(self, slot: int) -> tuple[F32, list[int]]:
        return self.arena.slot(slot)[self.shape.slot_offset :].copy(), self.arena.stamps[
            slot, self.shape.index
        ].tolist()


def same(a: tuple[F32, list[int]], b: tuple[F32, list[int]]) -> bool:
    return np.array_equal(a[0].view(np.uint32), b[0].view(np.uint32)) and a[1] == b[1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_state_agree_with_float64(isa: str, shape: GdnShape) -> None:
    world = World(shape, isa, 150)  # more than two runs of 64 tokens, and six that wait
    out = world.run(0, 150)
    expected, state = float64.gated_delta_net(shape, world.proj)
    scale = np.abs(expected).max()
    assert np.abs(out - expected).max() <= 2e-5 * scale
    held = world.state(0)[0]
    assert np.abs(shape.whole_state(held) - state).max() <= 1e-5 * np.abs(state).max()
    window = world.proj[150 - shape.conv_width + 1 :, : shape.conv_dim]
    assert np.array_equal(held[state.size :][: window.size], window.reshape(-1))
    assert world.state(0)[1] == [150, rolled(SEED + 1, world.tokens)]


@pytest.mark.parametrize("isa", ISAS)
@given(cuts=st.lists(st.integers(1, 12), min_size=1, max_size=12), shape=st.sampled_from(SHAPES[:4]))
@settings(max_examples=25, deadline=None)
def test_any_cut_gives_the_same_outputs_state_and_marks(isa: str, cuts: list[int], shape: GdnShape) -> None:
    length = sum(cuts)
    whole, cut = World(shape, isa, length), World(shape, isa, length, threads=2)
    offsets = sorted({1, min(2, length), -(-length // 2), length})
    expected = whole.run(0, length, marks=[(o, 10 + i) for i, o in enumerate(offsets)])
    position = 0
    for i, count in enumerate(cuts):
        source, target = i % 2, (i + 1) % 2  # never in place: the state moves between slots 0 and 1
        inside = [(o - position, 10 + n) for n, o in enumerate(offsets) if position < o <= position + count]
        assert np.array_equal(cut.run(position, count, source, target, inside), expected[position : position + count])
        position += count
    assert same(cut.state(len(cuts) % 2), whole.state(0))
    for i in range(len(offsets)):
        assert same(cut.state(10 + i), whole.state(10 + i)), offsets[i]


@pytest.mark.parametrize("isa", ISAS)
def test_one_token_at_a_time_in_place_equals_one_run(isa: str) -> None:
    whole, steps = World(SHAPES[3], isa, 40), World(SHAPES[3], isa, 40)
    expected = whole.run(0, 40)
    assert np.array_equal(np.concatenate([steps.run(t, 1) for t in range(40)]), expected)
    assert same(steps.state(0), whole.state(0))


@pytest.mark.parametrize("isa", ISAS)
def test_runs_of_64_tokens_and_folds_of_8_leave_no_seam(isa: str) -> None:
    marks = [(1, 5), (127, 6), (128, 7), (129, 8), (256, 9), (300, 10)]  # at, before and after the ends of both
    whole, other = World(SHAPES[0], isa, 300), World(SHAPES[0], isa, 300, threads=2)
    expected = whole.run(0, 300, marks=marks)
    got = [other.run(0, 100), other.run(100, 150, marks=[(27, 6), (28, 7), (29, 8)]), other.run(250, 50)]
    assert np.array_equal(np.concatenate(got), expected)
    assert same(other.state(0), whole.state(10))
    for slot in (6, 7, 8):
        assert same(other.state(slot), whole.state(slot)), slot


@pytest.mark.parametrize("isa", ISAS)
def test_a_state_stands_still_until_eight_tokens_wait(isa: str) -> None:
    world = World(SHAPES[2], isa, 40)
    elems = int(np.prod(world.shape.state_shape))
    waiting = elems + (world.shape.conv_width - 1) * world.shape.conv_dim
    world.run(0, 8)
    held = world.state(0)[0]
    assert not held[waiting:].any()
    world.run(8, 7)
    assert np.array_equal(world.state(0)[0][:elems], held[:elems])
    assert world.state(0)[0][waiting:].all()
    world.run(15, 1)
    assert not np.array_equal(world.state(0)[0][:elems], held[:elems])
    assert not world.state(0)[0][waiting:].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("offset", [1, 2, 3, 17, 24, 39, 40])
def test_a_mark_equals_the_state_after_a_run_of_that_many_tokens(isa: str, offset: int) -> None:
    marked, short = World(SHAPES[2], isa, 40), World(SHAPES[2], isa, 40)
    marked.run(0, 40, marks=[(offset, 3), (offset, 4)])
    short.run(0, offset)
    assert same(marked.state(3), short.state(0))
    assert same(marked.state(4), short.state(0))
    # and it can be continued from without being changed
    before = marked.state(3)
    if offset < 40:
        again = marked.run(offset, 40 - offset, 3, 5)
        assert np.array_equal(again, short.run(offset, 40 - offset))
        assert same(marked.state(3), before)


@pytest.mark.parametrize("isa", ISAS)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    before=st.lists(st.integers(0, 9), min_size=5, max_size=5),
)
@settings(max_examples=15, deadline=None)
def test_mates_change_nothing(isa: str, lengths: list[int], before: list[int]) -> None:
    shape = SHAPES[0]
    alone = [World(shape, isa, before[i] + n, seed=i + 1) for i, n in enumerate(lengths)]
    together = World(shape, isa, 1, threads=2)
    pieces, rows, tokens, expected = [], [], [], []
    for i, world in enumerate(alone):
        start, count = before[i], lengths[i]
        if start:
            world.run(0, start)
            together.arena.slot(i)[:] = world.arena.slot(0)
            together.arena.stamps[i] = world.arena.stamps[0]
        expected.append(world.run(start, count, marks=[(count, 9)]))
        pieces.append(world.piece(start, count, i, i, [(count, 10 + i)]))
        rows.append(world.proj[start:])
        tokens.append(world.tokens[start:])
    out = np.zeros((sum(lengths), shape.out_cols), np.float32)
    flat = batch(pieces, np.concatenate(tokens))
    runtime(isa, 2).gated_delta_net(together.layer, np.concatenate(rows), flat, together.arena, out)
    assert np.array_equal(out, np.concatenate(expected))
    for i, world in enumerate(alone):
        assert same(together.state(i), world.state(0)), i
        assert same(together.state(10 + i), world.state(9)), i


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_nothing(isa: str, threads: int) -> None:
    one, many = World(SHAPES[4], isa, 140), World(SHAPES[4], isa, 140, threads=threads)
    assert np.array_equal(one.run(0, 140), many.run(0, 140))
    assert same(one.state(0), many.state(0))


@pytest.mark.parametrize("isa", ISAS)
def test_a_fresh_sequence_ignores_what_its_slot_held(isa: str) -> None:
    clean, dirty = World(SHAPES[0], isa, 9), World(SHAPES[0], isa, 9)
    dirty.arena.slot(0)[:] = np.nan
    assert np.array_equal(dirty.run(0, 9), clean.run(0, 9))
    assert same(dirty.state(0), clean.state(0))


@pytest.mark.parametrize("isa", ISAS)
def test_nan_in_one_sequence_stays_there(isa: str) -> None:
    world = World(SHAPES[0], isa, 20)
    flat = batch([world.piece(0, 10, -1, 0, []), world.piece(0, 10, -1, 1, [])], world.tokens)
    clean = np.zeros((20, world.shape.out_cols), np.float32)
    runtime(isa).gated_delta_net(world.layer, world.proj, flat, world.arena, clean)
    dirty, proj = np.zeros_like(clean), world.proj.copy()
    proj[4, 0] = np.nan
    runtime(isa).gated_delta_net(world.layer, proj, flat, world.arena, dirty)
    assert np.array_equal(dirty[:4], clean[:4])
    assert np.isnan(dirty[4:10]).any()
    assert np.array_equal(dirty[10:], clean[10:])


@pytest.mark.parametrize("isa", ISAS)
def test_inputs_and_outputs_may_have_a_stride(isa: str) -> None:
    world, other = World(SHAPES[0], isa, 6), World(SHAPES[0], isa, 6)
    wide = np.full((6, world.shape.proj_cols + 10), np.nan, np.float32)
    wide[:, : world.shape.proj_cols] = world.proj
    out = np.full((6, world.shape.out_cols + 4), 5.0, np.float32)
    flat = batch([other.piece(0, 6, -1, 0, [])], other.tokens)
    runtime(isa).gated_delta_net(other.layer, wide, flat, other.arena, out[:, 4:])
    assert np.array_equal(out[:, 4:], world.run(0, 6))
    assert (out[:, :4] == 5.0).all()
