"""A state is used only where it belongs: position and hash of the prefix it has consumed, or nothing is written."""

from __future__ import annotations

import numpy as np
import pytest

from statemark.errors import IntegrityError
from statemark.kernels import GatedDeltaNet
from tests.kernels.inputs import ISAS, GdnShape, batch, i32, runtime
from tests.kernels.test_gated_delta_net import World


def ready(isa: str = ISAS[0]) -> World:
    """A sequence of 20 tokens of which slot 0 has consumed 8, and slot 1 seven."""
    world = World(GdnShape(), isa, 20)
    world.run(0, 8, marks=[(7, 1)])
    return world


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("fault", ["one token late", "one token early", "another prefix", "released", "never written"])
def test_a_wrong_state_is_refused_and_nothing_is_written(isa: str, fault: str) -> None:
    world = ready(isa)
    stamps = world.arena.stamps[:, world.shape.index]
    slot = 1 if fault == "one token late" else 9 if fault == "never written" else 0
    if fault == "one token early":
        stamps[0, 0] = 9
    if fault == "another prefix":
        stamps[0, 1] ^= np.uint64(1)
    if fault == "released":
        world.arena.release_slot(0)
    before = [world.arena.slot(i).copy() for i in range(24)], world.arena.stamps.copy()
    with pytest.raises(IntegrityError, match=f"slot {slot} holds the state after {stamps[slot, 0]} tokens"):
        world.run(8, 4, slot, 2, [(2, 3)])
    assert all(np.array_equal(world.arena.slot(i), held) for i, held in enumerate(before[0]))
    assert np.array_equal(world.arena.stamps, before[1])


def test_one_wrong_state_stops_its_mates_too() -> None:
    world = ready()
    good, bad = world.piece(8, 4, 0, 2, []), world.piece(7, 4, 0, 3, [])
    out = np.full((8, world.shape.out_cols), 7.0, np.float32)
    flat = batch([good, bad], np.concatenate([world.tokens[8:12], world.tokens[7:11]]))
    with pytest.raises(IntegrityError, match="sequence 1, recurrent layer 1"):
        runtime(ISAS[0]).gated_delta_net(world.layer, world.proj[:8], flat, world.arena, out)
    assert (out == 7.0).all()
    assert not world.arena.stamps[2].any()


def test_without_the_check_a_planted_fault_passes_and_changes_the_answer() -> None:
    world = ready()
    right = world.run(8, 4, 0, 2)
    world.arena.check_stamps = False
    assert not np.array_equal(world.run(8, 4, 1, 3), right)


def test_layers_of_a_slot_have_their_own_stamps_and_states() -> None:
    world, shape = ready(), GdnShape(index=0, slot_offset=0)
    held = world.state(0)
    assert not world.arena.stamps[0, 0].any()
    flat = batch([world.piece(0, 4, -1, 0, [])], world.tokens[:4])
    out = np.zeros((4, shape.out_cols), np.float32)
    layer = GdnShape(index=2).layer
    with pytest.raises(ValueError, match="recurrent layer 2 has no stamp: the arena has 2"):
        runtime(ISAS[0]).gated_delta_net(layer, world.proj[:4], flat, world.arena, out)
    assert held[1] == world.state(0)[1]


def test_a_state_that_does_not_fit_its_slot_is_refused() -> None:
    world = ready()
    far = GdnShape(slot_offset=25)
    flat = batch([world.piece(0, 4, -1, 0, [])], world.tokens[:4])
    out = np.zeros((4, far.out_cols), np.float32)
    with pytest.raises(ValueError, match="doesn't fit a slot"):
        runtime(ISAS[0]).gated_delta_net(far.layer, world.proj[:4], flat, world.arena, out)


def test_slots_and_pages_beyond_the_arena_are_refused() -> None:
    world = ready()
    out = np.zeros((4, world.shape.out_cols), np.float32)
    for piece in (
        world.piece(0, 4, -1, 24, []),
        world.piece(8, 4, 24, 0, []),
        world.piece(0, 4, -1, 0, [(1, 24)]),
    ):
        flat = batch([piece], world.tokens[:4])
        with pytest.raises(ValueError, match="slot 24 is out of range: the arena has 24"):
            runtime(ISAS[0]).gated_delta_net(world.layer, world.proj[:4], flat, world.arena, out)
    piece = world.piece(0, 4, -1, 0, [])
    piece.pages = (4096,)
    flat = batch([piece], world.tokens[:4])
    with pytest.raises(ValueError, match="page 4096 is out of range: the arena has 4096"):
        runtime(ISAS[0]).gated_delta_net(world.layer, world.proj[:4], flat, world.arena, out)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("key_dim", 12, "key_dim must be a multiple of 8, got 12"),
        ("value_dim", 20, "value_dim must be a multiple of 8, got 20"),
        ("value_heads", 3, "value_heads 3 is no multiple of key_heads 2"),
        ("conv_width", 17, "conv_width must be 1 to 16, got 17"),
        ("index", -1, "index -1"),
        ("key_heads", 0, "at least 1"),
    ],
)
def test_layers_with_impossible_sizes_are_refused(name: str, value: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = GdnShape(**{name: value}).layer


def test_constants_of_the_wrong_length_are_refused() -> None:
    shape = GdnShape()
    sizes = (shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim, shape.conv_width, 1e-6)
    for name in ("a_log", "dt_bias", "norm_weight"):
        constants = {**shape.constants, name: shape.constants[name][:-1]}
        with pytest.raises(ValueError, match=f"{name} must have"):
            GatedDeltaNet(0, 0, *sizes, **constants)
    constants = {**shape.constants, "conv_weight": shape.constants["conv_weight"][:-1]}
    with pytest.raises(ValueError, match=f"conv_weight must be {shape.conv_dim} x 4"):
        GatedDeltaNet(0, 0, *sizes, **constants)


def test_projections_of_the_wrong_shape_are_refused() -> None:
    world = ready()
    flat = batch([world.piece(0, 4, -1, 0, [])], world.tokens[:4])
    out = np.zeros((4, world.shape.out_cols), np.float32)
    for proj, result in (
        (world.proj[:3], out),
        (world.proj[:4, :-1], out),
        (world.proj[:4], out[:3]),
        (world.proj[:4], out[:, :-1]),
    ):
        with pytest.raises(ValueError, match=r"(proj|out) must be 4 x"):
            runtime(ISAS[0]).gated_delta_net(world.layer, proj, flat, world.arena, result)
    assert i32(4)[0] == flat.num_tokens
