"""Attention over pages: any cut, any mates, any threads give the same bits; masked and stale values never enter."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.kernels import PAGE, Arena, Attention
from tests.kernels import float64
from tests.kernels.inputs import F32, ISAS, AttentionShape, Piece, batch, runtime, uniform

SHAPES = [
    AttentionShape(),
    AttentionShape(1, 1, 8, 0, "float32"),
    AttentionShape(3, 3, 16, 16, "bfloat16"),
    AttentionShape(8, 1, 40, 10, "float32"),
    AttentionShape(14, 2, 64, 16, "bfloat16"),  # 7 rows a token: no tile of rows holds whole tokens
]


@dataclass
class World:
    """One arena, one sequence with its own pages in no order; runs pieces of it and keeps what comes out."""

    shape: AttentionShape
    isa: str
    length: int
    seed: int = 1
    threads: int = 1
    arena: Arena | None = None
    first_page: int = 0

    def __post_init__(self) -> None:
        count = -(-self.length // PAGE)
        step = 7 if count % 7 else 1  # a walk over all pages in no order that a kernel could rely on
        self.pages = tuple(self.first_page + (i * step + 3) % count for i in range(count))
        self.arena = self.arena or self.shape.arena(self.first_page + count)
        self.layer: Attention = self.shape.layer
        self.proj = uniform(self.length, self.shape.proj_cols, seed=self.seed, scale=2.0)
        self.cos, self.sin = self.shape.tables(np.arange(self.length))

    def piece(self, position: int, count: int) -> Piece:
        return Piece(position, count, self.seed if position else -1, self.seed, pages=self.pages)

    def run(self, position: int, count: int) -> F32:
        rows = slice(position, position + count)
        out = np.full((count, self.shape.out_cols), np.nan, np.float32)
        flat = batch([self.piece(position, count)], np.zeros(count, np.int32))
        assert self.arena is not None
        args = (self.proj[rows], self.cos[rows], self.sin[rows])
        runtime(self.isa, self.threads).attention(self.layer, *args, flat, self.arena, out)
        return out

    def held(self) -> list[bytes]:
        assert self.arena is not None
        return [self.arena.page(p)[self.shape.page_offset :].tobytes() for p in self.pages]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 150])
def test_outputs_agree_with_float64(isa: str, shape: AttentionShape, length: int) -> None:
    world = World(shape, isa, length)
    expected = float64.attention(shape, world.proj, world.cos, world.sin)
    # a key on the edge between two bfloat16 values may round the other way: 2^-8 of one weight among many
    tolerance = 3e-2 if shape.kv_dtype == "bfloat16" else 1e-5
    assert np.abs(world.run(0, length) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("isa", ISAS)
@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=8), shape=st.sampled_from(SHAPES))
@settings(max_examples=20, deadline=None)
def test_any_cut_gives_the_same_outputs_and_pages(isa: str, cuts: list[int], shape: AttentionShape) -> None:
    length = sum(cuts)
    whole, cut = World(shape, isa, length), World(shape, isa, length, threads=2)
    expected, position = whole.run(0, length), 0
    assert np.isfinite(expected).all()
    for count in cuts:
        assert np.array_equal(cut.run(position, count), expected[position : position + count])
        position += count
    assert cut.held() == whole.held()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES[::2], ids=str)
def test_one_query_is_the_same_alone_and_among_many_past_segments(isa: str, shape: AttentionShape) -> None:
    # 1024 keys are a segment: 1030 and 2060 tokens have two and three, which threads take apart when queries are few
    length = 2060
    whole, steps = World(shape, isa, length, threads=2), World(shape, isa, length)
    expected = whole.run(0, length)
    assert np.array_equal(steps.run(0, 1020), expected[:1020])
    for position in (*range(1020, 1030), *range(2040, 2060)):
        if position == 2040:
            assert np.array_equal(steps.run(1030, 1010), expected[1030:2040])
        alone = steps.run(position, 1)[0]
        assert np.array_equal(alone, expected[position]), position
        steps.threads = 3 - steps.threads
        assert np.array_equal(steps.run(position, 1)[0], alone), position
    assert steps.held() == whole.held()


@pytest.mark.parametrize("isa", ISAS)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    before=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    shape=st.sampled_from(SHAPES[:3]),
)
@settings(max_examples=15, deadline=None)
def test_mates_change_nothing(isa: str, lengths: list[int], before: list[int], shape: AttentionShape) -> None:
    arena = shape.arena(64)
    alone = [World(shape, isa, before[i] + n, seed=i + 1) for i, n in enumerate(lengths)]
    mates = [World(shape, isa, w.length, seed=w.seed, arena=arena, first_page=16 * i) for i, w in enumerate(alone)]
    expected = []
    for i, (world, mate) in enumerate(zip(alone, mates, strict=True)):
        if before[i]:
            world.run(0, before[i])
            mate.run(0, before[i])
        expected.append(world.run(before[i], lengths[i]))
    flat = batch([m.piece(before[i], lengths[i]) for i, m in enumerate(mates)], np.zeros(sum(lengths), np.int32))
    inputs = [np.concatenate([getattr(m, n)[before[i] :] for i, m in enumerate(mates)]) for n in ("proj", "cos", "sin")]
    out = np.zeros((sum(lengths), shape.out_cols), np.float32)
    runtime(isa, 2).attention(mates[0].layer, *inputs, flat, arena, out)
    assert np.array_equal(out, np.concatenate(expected))
    assert [m.held() for m in mates] == [w.held() for w in alone]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3]], ids=str)
def test_later_tokens_never_reach_earlier_ones(isa: str, shape: AttentionShape) -> None:
    clean, dirty = World(shape, isa, 100), World(shape, isa, 100)
    dirty.proj[70:] = np.nan
    expected, got = clean.run(0, 100), dirty.run(0, 100)
    assert np.array_equal(got[:70], expected[:70])
    assert np.isnan(got[70:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[2], SHAPES[4]], ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_later_values_that_are_not_finite_change_no_bit_of_earlier_rows(
    isa: str, shape: AttentionShape, bad: float
) -> None:
    clean, dirty = World(shape, isa, 200), World(shape, isa, 200)
    values = (2 * shape.heads + shape.kv_heads) * shape.head_dim
    for token in (70, 90, 131):
        dirty.proj[token, values::3] = bad
    expected, got = clean.run(0, 200), dirty.run(0, 200)
    assert np.array_equal(got[:70].view(np.uint32), expected[:70].view(np.uint32))
    assert not np.isfinite(got[70:]).all()
    alone = World(shape, isa, 200)
    alone.proj[:] = dirty.proj
    for first, last in pairwise((0, 64, 70, 71, 90, 100, 131, 140, 200)):
        assert np.array_equal(alone.run(first, last - first).view(np.uint32), got[first:last].view(np.uint32)), first


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[4]], ids=str)
def test_values_at_the_edge_of_nothing_leave_no_sign_of_later_tokens(isa: str, shape: AttentionShape) -> None:
    # products underflow to -0, and 0 times a later value may be -0
    whole, steps = World(shape, isa, 80), World(shape, isa, 80)
    values = (2 * shape.heads + shape.kv_heads) * shape.head_dim
    for world in (whole, steps):
        world.proj[:, values:] = np.where(uniform(80, shape.proj_cols - values, seed=5) < 0.8, -1.5e-38, 1.0)
    expected = whole.run(0, 80)
    for position in range(80):
        alone = steps.run(position, 1)[0]
        assert np.array_equal(alone.view(np.uint32), expected[position].view(np.uint32)), position


@pytest.mark.parametrize("isa", ISAS)
def test_an_infinite_value_in_one_head_stays_in_its_group(isa: str) -> None:
    shape = AttentionShape(4, 2, 16, 8, "float32")
    clean, dirty = World(shape, isa, 30), World(shape, isa, 30)
    values_of_second_group = (2 * shape.heads + shape.kv_heads + 1) * shape.head_dim
    dirty.proj[5, values_of_second_group] = np.inf
    expected, got = (w.run(0, 30).reshape(30, 4, 16) for w in (clean, dirty))
    assert np.array_equal(got[:5], expected[:5])
    assert np.array_equal(got[:, :2], expected[:, :2])
    assert not np.isfinite(got[5:, 2:, 0]).any()
    assert np.array_equal(got[:, 2:, 1:], expected[:, 2:, 1:])


@pytest.mark.parametrize("isa", ISAS)
def test_pages_hold_keys_as_panels_and_values_as_rows(isa: str) -> None:
    shape = AttentionShape(2, 2, 8, 0, "float32", page_offset=16)
    world = World(shape, isa, 20)
    world.run(0, 20)
    keys, values = world.proj[:, 2 * 2 * 8 :].reshape(20, 2, 2, 8).transpose(1, 0, 2, 3)
    keys = float64.rms_norm(keys.astype(np.float64), shape.constants["k_norm"], 1e-6)
    assert world.arena is not None
    for t in range(20):
        page = world.arena.page(world.pages[t // PAGE])[16:].reshape(2, 2, 8 * PAGE)
        for head in range(2):
            assert np.allclose(page[head, 0].reshape(8, PAGE)[:, t % PAGE], keys[t, head], rtol=1e-6)
            assert np.array_equal(page[head, 1].reshape(PAGE, 8)[t % PAGE], values[t, head])
    last = world.arena.page(world.pages[1])[16:].reshape(2, 2, 8 * PAGE)
    assert np.isnan(last[:, 0].reshape(2, 8, PAGE)[:, :, 4:]).all()  # nothing beyond the last token was written


def test_impossible_layers_and_shapes_are_refused_with_numbers() -> None:
    for bad, message in (
        ({"head_dim": 20}, "head_dim must be a multiple of 8, got 20"),
        ({"heads": 3}, "heads 3 is no multiple of kv_heads 2"),
        ({"rotary_dim": 7}, "rotary_dim must be even and at most head_dim 24, got 7"),
        ({"rotary_dim": 26}, "rotary_dim must be even and at most head_dim 24, got 26"),
    ):
        with pytest.raises(ValueError, match=message):
            _ = AttentionShape(**bad).layer
    world = World(SHAPES[0], ISAS[0], 4)
    flat = batch([world.piece(0, 4)], np.zeros(4, np.int32))
    out = np.zeros((4, world.shape.out_cols), np.float32)
    rt, arena = runtime(ISAS[0]), world.arena
    assert arena is not None
    with pytest.raises(ValueError, match="proj must be 4 x 288 or wider, is 4 x 287"):
        rt.attention(world.layer, world.proj[:, :-1], world.cos, world.sin, flat, arena, out)
    with pytest.raises(ValueError, match="cos must be 4 x 4, is 4 x 3"):
        rt.attention(world.layer, world.proj, world.cos[:, :3], world.sin, flat, arena, out)
    with pytest.raises(ValueError, match="doesn't fit a page"):
        rt.attention(AttentionShape(page_offset=33).layer, world.proj, world.cos, world.sin, flat, arena, out)
    piece = world.piece(0, 4)
    piece.pages = (1,)
    flat = batch([piece], np.zeros(4, np.int32))
    with pytest.raises(ValueError, match="page 1 is out of range: the arena has 1"):
        rt.attention(world.layer, world.proj, world.cos, world.sin, flat, arena, out)
