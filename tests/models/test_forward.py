"""Whole models keep contract 1 and 2 on every runtime: bits do not depend on chunks, mates, marks or threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.errors import IntegrityError
from statemark.models.qwen3_5 import Qwen3_5
from tests.models.building import CONFIGS, Runner, prompt, runtimes, write

LENGTH = 40


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: write(root / name, name) for name in CONFIGS}


@pytest.fixture(scope="module")
def runners(folders: dict[str, Path]) -> Any:
    """Loaded models by (config, runtime, dtype), each loaded once."""
    loaded: dict[tuple[str, str, str], Runner] = {}

    def get(name: str, runtime: str = "numpy", dtype: str = "float32") -> Runner:
        key = (name, runtime, dtype)
        if key not in loaded:
            loaded[key] = Runner(folders[name], runtime, dtype)
        return loaded[key]

    return get


@pytest.mark.parametrize("runtime", runtimes())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_do_not_change_bits(runners: Any, name: str, dtype: str, runtime: str) -> None:
    runner = runners(name, runtime, dtype)
    ids = prompt(runner.spec.vocab_size, LENGTH)
    whole = runner.logits(ids)
    assert np.isfinite(whole).all()
    for chunks in ([1] * LENGTH, [16, 16, 8], [1, 15, 17, 7], [39, 1]):
        np.testing.assert_array_equal(runner.logits(ids, chunks), whole)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_mates_do_not_change_bits(runners: Any, data: st.DataObject) -> None:
    """Three prompts advance by drawn amounts, together or apart; each gets the logits that it gets alone."""
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    runner = runners(name, data.draw(st.sampled_from(runtimes())), data.draw(st.sampled_from(["float32", "bfloat16"])))
    prompts = [prompt(runner.spec.vocab_size, data.draw(st.integers(1, 40)), seed) for seed in range(3)]
    alone = [runner.logits(ids) for ids in prompts]
    arena, runner.hashes = runner.arena(40, sequences=3), {}
    done, got = [0, 0, 0], [[], [], []]
    while any(d < len(ids) for d, ids in zip(done, prompts, strict=True)):
        waiting = [s for s in range(3) if done[s] < len(prompts[s])]
        moving = data.draw(st.lists(st.sampled_from(waiting), min_size=1, unique=True))
        pieces = []
        for s in moving:
            count = data.draw(st.integers(1, len(prompts[s]) - done[s]))
            pieces.append((prompts[s][done[s] : done[s] + count], done[s], s, [3 * s, 3 * s + 1, 3 * s + 2]))
        rows = runner.step(arena, pieces)
        for s, piece in zip(moving, pieces, strict=True):
            got[s].append(rows[: len(piece[0])])
            rows, done[s] = rows[len(piece[0]) :], done[s] + len(piece[0])
    for s in range(3):
        np.testing.assert_array_equal(np.concatenate(got[s]), alone[s])


@pytest.mark.parametrize("runtime", runtimes())
@pytest.mark.parametrize("name", ["interval-4-tied", "custom-layers", "only-recurrent"])
def test_a_mark_made_in_passing_resumes_exactly(runners: Any, name: str, runtime: str) -> None:
    runner = runners(name, runtime)
    ids, other = prompt(runner.spec.vocab_size, 50), prompt(runner.spec.vocab_size, 50, seed=5)
    cut = 32
    expected = runner.logits(ids[:cut] + other[cut:])
    arena, runner.hashes = runner.arena(50, sequences=2), {}
    runner.step(arena, [(ids, 0, 0, [0, 1, 2, 3])], marks=[(0, cut, 5)])
    # Another sequence goes on from the mark, shares the two full pages and writes its own state.
    rows = runner.step(arena, [(other[cut:], cut, 1, [0, 1, 4, 5])], state_in=[5])
    np.testing.assert_array_equal(rows, expected[cut:])
    again = runner.step(arena, [(other[cut:], cut, 2, [0, 1, 6, 7])], state_in=[5])
    np.testing.assert_array_equal(again, expected[cut:])


@pytest.mark.parametrize("runtime", runtimes())
def test_a_state_of_another_prefix_is_refused_and_a_planted_one_shows(runners: Any, runtime: str) -> None:
    runner = runners("interval-4-tied", runtime)
    ids, other = prompt(500, 40), prompt(500, 40, seed=9)
    right = runner.logits(ids)
    arena, runner.hashes = runner.arena(48, sequences=2), {}
    runner.step(arena, [(ids[:32], 0, 0, [0, 1, 2]), (other[:32], 0, 1, [3, 4, 5])])
    good = runner.hashes[0]
    arena.copy_slot(1, 0)
    with pytest.raises(IntegrityError, match="slot 0"):
        runner.step(arena, [(ids[32:], 32, 0, [0, 1, 2])])
    assert runner.hashes[0] == good
    arena.check_stamps = False
    wrong = runner.step(arena, [(ids[32:], 32, 0, [0, 1, 2])])
    assert not np.array_equal(wrong, right[32:])


@pytest.mark.parametrize("name", CONFIGS)
def test_runtimes_agree_to_rounding(runners: Any, name: str) -> None:
    ids = prompt(runners(name).spec.vocab_size, LENGTH)
    exact = runners(name).logits(ids)
    for runtime in runtimes():
        got = runners(name, runtime).logits(ids)
        # Float32 rounding through a few layers, against float64 reductions. Single positions may be far worse: see
        # tests/models/distances.py.
        assert np.sqrt(np.mean((got - exact) ** 2)) < 1e-5 * exact.std()
        assert np.abs(got - exact).max() < 1e-3 * exact.std()


def test_a_runner_gives_different_logits_for_different_prefixes(runners: Any) -> None:
    """The checks above could pass on a model that looks at the last token only."""
    for name in CONFIGS:
        runner = runners(name)
        ids = prompt(runner.spec.vocab_size, 20)
        changed = [(ids[0] + 1) % runner.spec.vocab_size, *ids[1:]]
        one, two = runner.logits(ids), runner.logits(changed)
        assert np.abs(one[-1] - two[-1]).max() > 1e-3, name


def test_hidden_states_are_a_view_that_the_next_forward_reuses(runners: Any) -> None:
    runner = runners("interval-2-bias")
    model: Qwen3_5 = runner.model
    arena = runner.arena(16)
    calls = []
    for _ in range(2):
        batch = runner.kernels.Batch(
            token_ids=np.array([1, 2], np.int32), seq_start=np.array([0, 2], np.int32),
            seq_position=np.zeros(1, np.int32), seq_hash=np.zeros(1, np.uint64), state_in=np.array([-1], np.int32),
            state_out=np.zeros(1, np.int32), marks=np.zeros((0, 3), np.int32), page_table=np.zeros((1, 1), np.int32),
        )  # fmt: skip
        calls.append(model.forward(batch, np.array([1, 2], np.int32), np.arange(2, dtype=np.int32), arena))
    assert calls[0].shape == (2, 96 + 3 * 40)  # the residual stream, and what the last layer's heads made
    assert np.shares_memory(calls[0], calls[1])
    np.testing.assert_array_equal(calls[0], calls[1])
    assert model.logits(calls[1][1:]).shape == (1, 301)
