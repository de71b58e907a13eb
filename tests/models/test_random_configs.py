"""Drawn dimensions: any config that is accepted loads, keeps its bits under any cut, and agrees between runtimes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from statemark.models.config import ATTENTION, RECURRENT
from statemark.models.make_model import write_model
from tests.models.building import COMMON, Runner, prompt, runtimes
from tests.models.distances import Distance, mean_kl

eights = st.integers(1, 8).map(lambda n: 8 * n)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, key_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head_dim = draw(eights)
    layers = draw(st.lists(st.sampled_from([ATTENTION, RECURRENT]), min_size=1, max_size=4))
    return {
        **COMMON,
        "vocab_size": draw(st.integers(259, 400)),
        "hidden_size": draw(st.integers(8, 130)),
        "intermediate_size": draw(st.integers(1, 130)),
        "num_hidden_layers": len(layers),
        "layer_types": layers,
        "num_attention_heads": kv_heads * draw(st.integers(1, 4)),
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "attention_bias": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": key_heads * draw(st.integers(1, 3)),
        "linear_key_head_dim": draw(eights),
        "linear_value_head_dim": draw(eights),
        "linear_conv_kernel_dim": draw(st.integers(1, 7)),
        "rms_norm_eps": draw(st.sampled_from([1e-6, 1e-5])),
        "rope_parameters": {
            "rope_theta": draw(st.sampled_from([1e4, 1e6, 1e7])),
            "partial_rotary_factor": 2 * draw(st.integers(1, head_dim // 2)) / head_dim,
        },
    }


@st.composite
def cuts(draw: st.DrawFn, total: int) -> list[int]:
    inner = sorted(draw(st.sets(st.integers(1, total - 1), max_size=4)))
    return [b - a for a, b in zip([0, *inner], [*inner, total], strict=True)]


@settings(max_examples=25, deadline=None)
@given(config=configs(), chunks=cuts(35), seed=st.integers(0, 3))
def test_any_config(config: dict[str, Any], chunks: list[int], seed: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write_model(Path(root) / "m", config, seed=seed, dtype="bfloat16").path
        ids = prompt(config["vocab_size"], 35, seed)
        whole: list[np.ndarray] = []
        for runtime in ["numpy", *runtimes()]:
            exact, rounded = Runner(folder, runtime), Runner(folder, runtime, "bfloat16")
            whole.append(exact.logits(ids))
            np.testing.assert_array_equal(exact.logits(ids, chunks), whole[-1])
            np.testing.assert_array_equal(rounded.logits(ids, chunks), rounded.logits(ids))
            assert mean_kl(whole[-1], rounded.logits(ids)) < 0.05
        for other in whole[1:]:
            assert Distance.between(whole[0], other).rms < 1e-4
