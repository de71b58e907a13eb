"""The NumPy kernels against formulas written another way: they are what the compiled ones are held to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from statemark.errors import IntegrityError
from statemark.kernels.reference import (
    PAGE,
    Arena,
    Attention,
    Batch,
    GatedDeltaNet,
    Matrix,
    Runtime,
    bf16_bits,
    bf16_values,
    next_hash,
)

RT = Runtime()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (rng(seed).normal(size=shape) * scale).astype(np.float32)


def batch_of(count: int, position: int = 0, **changes: Any) -> Batch:
    pages = -(-(position + count) // PAGE)
    fields: dict[str, Any] = {
        "token_ids": np.arange(count, dtype=np.int32),
        "seq_start": np.array([0, count], np.int32),
        "seq_position": np.array([position], np.int32),
        "seq_hash": np.array([0], np.uint64),
        "state_in": np.array([0 if position else -1], np.int32),
        "state_out": np.array([0], np.int32),
        "marks": np.zeros((0, 3), np.int32),
        "page_table": np.arange(pages, dtype=np.int32)[None],
    }
    return Batch(**{**fields, **changes})


def test_bf16_rounds_to_nearest_even() -> None:
    one = 1.0
    step = 2.0**-7  # spacing of bfloat16 at 1
    cases = {
        one: one,
        one + step / 2: one,  # tie to even
        one + 3 * step / 2: one + 2 * step,
        one + step / 2 + 1e-6: one + step,
        -0.0: -0.0,
        3.4e38: np.inf,
        np.inf: np.inf,
    }
    got = bf16_values(bf16_bits(list(cases)))
    np.testing.assert_array_equal(got, np.array(list(cases.values()), np.float32))
    assert np.signbit(bf16_values(bf16_bits([-0.0])))[0]
    assert np.isnan(bf16_values(bf16_bits([np.nan])))[0]


def test_every_bf16_value_survives() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bf16_values(bits)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(bf16_bits(values[finite]), bits[finite])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrix_linear_and_embed(dtype: Any) -> None:
    w, x, bias = normal(37, 11), normal(5, 11, seed=1), normal(37, seed=2)
    m = Matrix(37, 11, dtype)
    assert m.fill(0, w[:20]) == 0
    assert m.fill(20, w[20:]) == 0
    held = m.to_float32()
    np.testing.assert_array_equal(held, w if dtype == "float32" else bf16_values(bf16_bits(w)))
    out = np.empty((5, 37), np.float32)
    RT.linear(x, m, out, bias)
    np.testing.assert_allclose(out, x @ held.T + bias, rtol=1e-5, atol=1e-5)
    more = out.copy()
    RT.linear(x, m, more, accumulate=True)
    np.testing.assert_allclose(more, out + x @ held.T, rtol=1e-5, atol=1e-5)
    rows = np.empty((3, 11), np.float32)
    RT.embed(np.array([4, 0, 36], np.int32), m, rows)
    np.testing.assert_array_equal(rows, held[[4, 0, 36]])
    with pytest.raises(ValueError, match=r"\[0, 37\)"):
        RT.embed(np.array([37], np.int32), m, rows[:1])


def test_matrix_sizes_types_and_bad_values() -> None:
    assert Matrix(33, 3, "bfloat16").nbytes == 64 * 4 * 2
    assert Matrix(33, 4, "float32").nbytes == 64 * 4 * 4
    m = Matrix(2, 3, "float32")
    assert m.fill(0, np.array([[1, np.nan, np.inf], [-np.inf, 0, 0]], np.float16)) == 3
    assert m.fill(0, bf16_bits(normal(2, 3))) == 0
    for wrong in (normal(2, 4), normal(3, 3), normal(3)):
        with pytest.raises(ValueError, match="do not fit"):
            m.fill(0, wrong)
    with pytest.raises(TypeError, match="float64"):
        m.fill(0, np.zeros((2, 3)))


def test_norm_swiglu_rope() -> None:
    x, w = normal(4, 10, scale=3), normal(10, seed=1)
    out = np.empty_like(x)
    RT.rms_norm(x, w, 1e-5, out)
    np.testing.assert_allclose(out, x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * w, rtol=1e-5)
    act = np.empty((4, 5), np.float32)
    RT.swiglu(x, act)
    np.testing.assert_allclose(act, x[:, :5] / (1 + np.exp(-x[:, :5])) * x[:, 5:], rtol=1e-5)
    extreme = np.array([[-200.0, 200.0, 1.0, 1.0]], np.float32)
    RT.swiglu(extreme, act[:1, :2])
    np.testing.assert_allclose(act[0, :2], [0.0, 200.0], atol=1e-30)
    freq = np.array([1.0, 0.1], np.float32)
    cos, sin = RT.rope_tables(np.array([0, 1, 100000], np.int32), freq)
    np.testing.assert_allclose(cos[1], np.cos([1.0, 0.1]), rtol=1e-6)
    np.testing.assert_allclose(cos**2 + sin**2, 1, rtol=1e-6)


def test_top_logprobs_break_ties_by_lower_id() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 0.0], [0.0, 0.0, 0.0, 0.0]], np.float32)
    ids, lps, target, rank = RT.top_logprobs(logits, 3, np.array([2, 3], np.int32))
    assert ids.tolist() == [[1, 2, 0], [0, 1, 2]]
    np.testing.assert_allclose(np.exp(lps[1]), 0.25, rtol=1e-6)
    assert rank.tolist() == [2, 4]
    np.testing.assert_allclose(target[0], 3 - np.log(np.exp([1, 3, 3, 0]).sum()), rtol=1e-6)
    assert RT.argmax(logits).tolist() == [1, 0]


def test_attention_is_softmax_over_the_causal_past() -> None:
    heads, kv, d, rotary, t = 4, 2, 16, 8, 37
    weights = [1 + normal(d, seed=i, scale=0.1) for i in (1, 2)]
    att = Attention(0, 0, heads, kv, d, rotary, 1e-6, *weights)
    proj = normal(t, 2 * (heads + kv) * d)
    freq = (10000.0 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
    cos, sin = RT.rope_tables(np.arange(t, dtype=np.int32), freq)
    arena = Arena(3, att.page_elems, "float32", 1, 0, 0)
    out = np.empty((t, heads * d), np.float32)
    RT.attention(att, proj, cos, sin, batch_of(t), arena, out)

    def prepared(x: np.ndarray, weight: np.ndarray) -> np.ndarray:  # norm, then rotation as complex numbers
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
        pairs = (x[..., : rotary // 2] + 1j * x[..., rotary // 2 : rotary]) * (cos + 1j * sin)[:, None]
        return np.concatenate([pairs.real, pairs.imag, x[..., rotary:]], -1)

    q_gate = proj[:, : 2 * heads * d].reshape(t, heads, 2, d).astype(np.float64)
    k, v = proj[:, 2 * heads * d :].reshape(t, 2, kv, d).astype(np.float64).transpose(1, 0, 2, 3)
    q, k = prepared(q_gate[:, :, 0], weights[0]), prepared(k, weights[1])
    scores = np.einsum("thd,shd->hts", q, np.repeat(k, 2, axis=1)) / 4.0
    scores[:, np.triu(np.ones((t, t), bool), 1)] = -np.inf
    p = np.exp(scores)
    mixed = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), np.repeat(v, 2, axis=1))
    expected = mixed / (1 + np.exp(-q_gate[:, :, 1]))
    np.testing.assert_allclose(out, expected.reshape(t, -1), rtol=1e-4, atol=1e-5)
    # Layout: keys of a page as [kv][D][16], its values as [kv][16][D].
    page = arena.page(1).reshape(kv, 2, d * PAGE)
    np.testing.assert_allclose(page[1, 0].reshape(d, PAGE)[:, 3], k[16 + 3, 1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(page[1, 1].reshape(PAGE, d)[3], v[16 + 3, 1], rtol=1e-6)


def small_gdn(**changes: Any) -> GatedDeltaNet:
    fields: dict[str, Any] = {
        "index": 0, "slot_offset": 3, "key_heads": 1, "value_heads": 2, "key_dim": 8, "value_dim": 16, "conv_width": 3,
        "eps": 1e-6, "conv_weight": normal(48, 3, seed=3), "a_log": normal(2, seed=4), "dt_bias": normal(2, seed=5),
        "norm_weight": normal(16, seed=6),
    }  # fmt: skip
    return GatedDeltaNet(**{**fields, **changes})


def test_gated_delta_net_is_its_recurrence() -> None:
    gdn, t = small_gdn(), 11
    proj = normal(t, gdn.conv_dim + 2 * 16 + 4)
    arena = Arena(1, 0, "float32", 2, gdn.slot_floats + 5, 1)
    out = np.empty((t, 32), np.float32)
    RT.gated_delta_net(gdn, proj, batch_of(t), arena, out)

    x = proj.astype(np.float64)
    padded = np.concatenate([np.zeros((2, 48)), x[:, :48]])
    conv = sum(padded[j : j + t] * gdn.conv_weight[:, j] for j in range(3))
    conv = conv / (1 + np.exp(-conv))
    state = np.zeros((2, 8, 16))
    for i in range(t):
        q, k, v = conv[i, :8], conv[i, 8:16], conv[i, 16:].reshape(2, 16)
        q, k = (y / np.sqrt((y**2).sum() + 1e-6) for y in (q, k))
        b, a = x[i, 80:82], x[i, 82:84]
        for h in range(2):
            beta = 1 / (1 + np.exp(-b[h]))
            keep = np.exp(-np.exp(gdn.a_log[h]) * np.log1p(np.exp(a[h] + gdn.dt_bias[h])))
            # The delta rule as a matrix: S <- keep (I - beta k k^T) S + beta k v^T.
            state[h] = keep * (np.eye(8) - beta * np.outer(k, k)) @ state[h] + beta * np.outer(k, v[h])
            o = q @ state[h] / np.sqrt(8)
            z = x[i, 48 + 16 * h : 64 + 16 * h]
            o = o / np.sqrt((o**2).mean() + 1e-6) * gdn.norm_weight * z / (1 + np.exp(-z))
            np.testing.assert_allclose(out[i, 16 * h : 16 * h + 16], o, rtol=1e-4, atol=1e-5)
    slot = arena.slot(0)[3 : 3 + gdn.slot_floats]
    np.testing.assert_allclose(slot[:256].reshape(2, 8, 16), state, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(slot[256:352].reshape(2, 48), proj[-2:, :48])  # raw, oldest first
    assert not slot[352:].any()  # no token waits
    assert not arena.slot(0)[:3].any()
    assert not arena.slot(0)[3 + gdn.slot_floats :].any()
    assert not arena.slot(1).any()


def test_stamps_and_marks() -> None:
    gdn, t = small_gdn(), 6
    proj = normal(t, 84)
    arena = Arena(1, 0, "float32", 4, gdn.slot_floats + 3, 1)
    out = np.empty((t, 32), np.float32)
    marks = np.array([[0, 2, 2], [0, 6, 3]], np.int32)
    batch = batch_of(t, marks=marks, seq_hash=np.array([77], np.uint64))
    RT.gated_delta_net(gdn, proj, batch, arena, out)
    rolling, chain = 77, []
    for token in range(t):
        rolling = next_hash(rolling, token)
        chain.append(rolling)
    assert arena.stamps[:, 0].tolist() == [[6, chain[5]], [0, 0], [2, chain[1]], [6, chain[5]]]
    assert (batch.end_hash, batch.mark_hash) == ([chain[5]], [chain[1], chain[5]])
    np.testing.assert_array_equal(arena.slot(3), arena.slot(0))

    again = np.empty((4, 32), np.float32)
    rest = {"token_ids": np.arange(2, 6, dtype=np.int32), "state_in": np.array([2], np.int32)}
    RT.gated_delta_net(gdn, proj[2:], batch_of(4, 2, seq_hash=np.array([chain[1]], np.uint64), **rest), arena, again)
    np.testing.assert_array_equal(again, out[2:])
    np.testing.assert_array_equal(arena.slot(0), arena.slot(3))

    before = arena.slot(0).copy()
    for wrong in ({"seq_hash": np.array([1], np.uint64)}, {"state_in": np.array([1], np.int32)}):
        with pytest.raises(IntegrityError, match="recurrent layer 0"):
            RT.gated_delta_net(
                gdn, proj[2:], batch_of(4, 2, **{"seq_hash": np.array([chain[1]], np.uint64), **rest, **wrong}),
                arena, again,
            )  # fmt: skip
    np.testing.assert_array_equal(arena.slot(0), before)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"seq_start": np.array([0, 3], np.int32)}, "seq_start must go from 0 to 4"),
        ({"seq_start": np.array([1, 4], np.int32)}, "seq_start must go from 0 to 4"),
        ({"seq_hash": np.zeros(2, np.uint64)}, "disagree"),
        ({"state_in": np.array([0], np.int32)}, "state_in is -1 exactly at position 0"),
        ({"state_out": np.array([-1], np.int32)}, "state_out"),
        ({"page_table": np.zeros((1, 0), np.int32)}, "narrower"),
        ({"page_table": np.array([[-1]], np.int32)}, "gap"),
        ({"token_ids": np.array([1, -1, 2, 3], np.int32)}, "negative"),
        ({"marks": np.array([[0, 3, 1], [0, 2, 2]], np.int32)}, "sorted"),
        ({"marks": np.array([[0, 5, 1]], np.int32)}, "out of range"),
        ({"marks": np.array([[0, 0, 1]], np.int32)}, "out of range"),
        ({"marks": np.array([[1, 1, 1]], np.int32)}, "out of range"),
        ({"marks": np.array([[0, 1, 0]], np.int32)}, "written twice"),
    ],
)
def test_batches_are_checked(changes: dict[str, Any], part: str) -> None:
    assert batch_of(4).num_tokens == 4
    with pytest.raises(ValueError, match=part):
        batch_of(4, **changes)


def two_sequences(**changes: Any) -> Batch:
    fields: dict[str, Any] = {
        "token_ids": np.arange(4, dtype=np.int32), "seq_start": np.array([0, 2, 4], np.int32),
        "seq_position": np.array([16, 16], np.int32), "seq_hash": np.zeros(2, np.uint64),
        "state_in": np.array([0, 1], np.int32), "state_out": np.array([0, 1], np.int32),
        "marks": np.zeros((0, 3), np.int32), "page_table": np.array([[0, 1], [0, 2]], np.int32),
    }  # fmt: skip
    return Batch(**{**fields, **changes})


def test_what_one_sequence_writes_no_other_touches() -> None:
    two_sequences()
    two_sequences(state_in=np.array([5, 5], np.int32))  # a shared mark is only read
    with pytest.raises(ValueError, match="slot is written twice"):
        two_sequences(state_out=np.array([1, 1], np.int32))
    with pytest.raises(ValueError, match="slot 1 is read and written"):
        two_sequences(state_in=np.array([1, 1], np.int32))
    with pytest.raises(ValueError, match="page is written twice"):
        two_sequences(page_table=np.array([[0, 1], [0, 1]], np.int32))
    with pytest.raises(ValueError, match="page is read by one sequence"):
        two_sequences(page_table=np.array([[0, 1], [1, 2]], np.int32))


def test_layers_and_arenas_are_checked() -> None:
    for changes in ({"key_heads": 3}, {"key_dim": 4}, {"conv_weight": normal(47, 3)}, {"conv_width": 17}):
        with pytest.raises(ValueError, match=r"heads|multiples|shape"):
            small_gdn(**changes)
    for dims in ((4, 3, 8, 8), (4, 2, 12, 4), (4, 2, 8, 3), (4, 2, 8, 10)):
        with pytest.raises(ValueError, match=r"heads|multiple|rotary_dim"):
            Attention(0, 0, *dims, 1e-6, normal(8), normal(8))
    gdn = small_gdn()
    arena = Arena(1, 0, "float32", 1, gdn.slot_floats + 3, 1)
    with pytest.raises(ValueError, match="slot 1 is out of range: the arena has 1"):
        RT.gated_delta_net(gdn, normal(2, 84), batch_of(2, state_out=np.array([1], np.int32)), arena, normal(2, 32))
    att = Attention(0, 0, 1, 1, 8, 8, 1e-6, normal(8), normal(8))
    with pytest.raises(ValueError, match="page 7 is out of range: the arena has 1"):
        RT.attention(att, normal(2, 32), normal(2, 4), normal(2, 4), batch_of(2, page_table=np.array([[7]], np.int32)),
                     Arena(1, att.page_elems, "float32", 1, 0, 0), normal(2, 8))  # fmt: skip


def test_released_memory_is_empty_and_unstamped() -> None:
    arena = Arena(2, 8, "bfloat16", 2, 4, 1)
    arena.page(1)[:] = 7
    arena.slot(1)[:] = 1.0
    arena.stamps[1, 0] = (3, 4)
    arena.copy_page(1, 0)
    arena.copy_slot(1, 0)
    assert arena.page(0).tolist() == [7] * 8
    assert (arena.slot(0).tolist(), arena.stamps[0, 0].tolist()) == ([1.0] * 4, [3, 4])
    arena.release_page(1)
    arena.release_slot(1)
    assert not arena.page(1).any()
    assert not arena.slot(1).any()
    assert not arena.stamps[1].any()
