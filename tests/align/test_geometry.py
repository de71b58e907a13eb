"""Block sizes and units against the worked values of vLLM 0.32, and against public reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from statemark.align.budget import Budget
from statemark.align.families import read_model
from statemark.align.flags import parse_serve_flags
from statemark.align.frame import frame_of
from statemark.align.geometry import Geometry
from statemark.align.groups import LayerSpec, Role, split, state_grid, unify
from statemark.align.platforms import platform
from statemark.align.resolve import resolve_geometry
from statemark.align.units import Bytes, KernelChunk
from statemark.errors import ConfigurationError
from tests.align import tiny_models
from tests.align.test_families import KIMI

Q3N = {
    "model_type": "qwen3_next",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "dtype": "bfloat16",
    "max_position_embeddings": 262_144,
}
DENSE_27B = {
    "model_type": "qwen3_5_text",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
    "mamba_ssm_dtype": "float32",
}
GLM = {
    "model_type": "glm5_next_text",
    "hidden_size": 4096,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "kv_lora_rank": 512,
}


def geometry(config: dict[str, Any], *flags: str, gpu: str = "h100", drafter: dict[str, Any] | None = None) -> Geometry:
    return resolve_geometry(read_model(config), parse_serve_flags(["m", *flags])[1], platform(gpu), drafter)


@pytest.mark.parametrize(
    ("config", "flags", "gpu", "block", "padding"),
    [
        (tiny_models.qwen3_next(), (), "cpu-avx512-bf16", 384, 43.28),
        (tiny_models.qwen3_5(), (), "cpu", 384, 43.28),
        (
            tiny_models.qwen3_5(head_dim=256, linear_num_key_heads=16, linear_num_value_heads=16)
            | {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
            (),
            "cpu",
            640,
            20.75,
        ),
        (tiny_models.granite(), ("--mamba-ssm-cache-dtype", "float32"), "cpu", 384, 45.73),
        (Q3N, (), "h100", 544, 1.49),
        (Q3N, ("-tp", "2"), "h100", 544, 1.49),
        (Q3N, ("-tp", "4"), "h100", 272, 1.49),
        (Q3N, ("--mamba-ssm-cache-dtype", "float32"), "h100", 1056, 0.76),
        (Q3N, ("--mamba-ssm-cache-dtype", "float32", "--kv-cache-dtype", "fp8"), "h100", 2096, 0.0),
        (Q3N, ("--block-size", "16"), "h100", 544, 1.49),
        (Q3N, ("--block-size", "64"), "h100", 576, 7.46),
        (Q3N, ("--block-size", "128"), "h100", 640, 19.40),
        (Q3N, ("--block-size", "256"), "h100", 768, 43.28),
        (Q3N, ("--block-size", "512"), "h100", 1024, 91.04),
        (Q3N, (), "b200", 544, 1.49),
        (Q3N, (), "mi300x", 544, 1.49),
        (Q3N, ("--attention-backend", "ROCM_AITER_UNIFIED_ATTN"), "mi300x", 576, 7.46),
        (Q3N, (), "xpu", 576, 7.46),
        (DENSE_27B, (), "h100", 784, 0.13),
        (DENSE_27B, ("--kv-cache-dtype", "fp8"), "h100", 1568, 0.13),
        (DENSE_27B, ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}'), "h100", 800, 1.52),
        (KIMI, (), "h100", 1920, 1.89),
        (KIMI, ("-tp", "8"), "h100", 256, 8.68),
        (GLM, ("-tp", "4"), "h100-64", 1152, 8.68),
    ],
)
def test_worked_values(config: dict[str, Any], flags: tuple[str, ...], gpu: str, block: int, padding: float) -> None:
    found = geometry(config, *flags, gpu=gpu)
    assert found.grid.tokens == block
    assert round(100 * found.state_groups[0].padding, 2) == padding
    units = {found.config_minimum.tokens, found.scheduler_block.tokens, found.hash_unit.tokens, found.hit_unit.tokens}
    assert units == {block}  # a hybrid without an odd drafter has one unit for everything
    assert not found.fine_grained


def test_tensor_parallelism_stops_helping_where_kv_heads_stop_dividing() -> None:
    assert [geometry(Q3N, "-tp", str(n)).grid.tokens for n in (1, 2, 4, 8)] == [544, 544, 272, 144]


def test_an_indexer_with_large_kernel_blocks_sets_the_step() -> None:
    found = geometry(GLM | {"index_kpool": 16}, "-tp", "4")
    assert found.grid.tokens == 1536  # 512 is the indexer's smallest kernel block
    assert [(g.role, g.unit.tokens) for g in found.groups if g.role is Role.RING] == [(Role.RING, 16)]
    assert found.config_minimum.tokens == 1536  # the ring is never cached, so it doesn't drag the minimum down


def test_capacity_of_the_q3n_log() -> None:
    found = geometry(tiny_models.qwen3_next(), gpu="cpu-avx512-bf16")
    assert [(g.role, g.layers, g.copies) for g in found.groups] == [(Role.ATTENTION, 2, 1), (Role.STATE, 2, 3)]
    assert found.bytes_per_block == 2 * 196_608
    assert found.fixed_blocks == 6
    assert found.blocks_of(16_384) == 49
    assert (1 << 30) // found.bytes_per_block == 2730
    assert round(found.concurrency(1 << 30), 2) == 55.71


def test_draft_tokens_cost_a_row_and_a_state_block_each() -> None:
    plain, drafting = (
        geometry(DENSE_27B, "--block-size", "800", *f)
        for f in ((), ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}'))
    )
    assert drafting.state_bytes - plain.state_bytes == 48 * 3 * 10_240 * 2
    assert drafting.fixed_blocks - plain.fixed_blocks == 3 * 3


TARGET = [
    LayerSpec(Role.ATTENTION, "attention", 12, 544, 1_114_112, 1_114_112),
    LayerSpec(Role.STATE, "GDN", 36, 544, 1_097_728, 1_114_112),
]


@pytest.mark.parametrize(
    ("name", "kv_heads", "block", "window", "blocks", "common"),
    [
        ("SWA kv8 hd128, FA", 8, 544, 2048, (1088, 544, 544), 1088),
        ("SWA kv2 hd128, FA", 2, 544, 2048, (544, 544, 1088), 1088),
        ("full-attn kv2", 2, 544, None, (544, 544, 1088), 1088),
        ("SWA kv4 hd128, FA", 4, 544, 2048, (544, 544, 544), 544),
        ("SWA kv8, FlashInfer", 8, 64, 2048, (544, 544, 64), 1088),
        ("SWA kv4, FlashInfer", 4, 64, 2048, (544, 544, 64), 1088),
    ],
)
def test_unification_with_a_drafter(
    name: str, kv_heads: int, block: int, window: int | None, blocks: tuple[int, ...], common: int
) -> None:
    page = block * kv_heads * 128 * 2 * 2
    groups = split(unify([*TARGET, LayerSpec(Role.DRAFT, name, 4, block, page, page, window=window)]))
    assert tuple(g.unit.tokens for g in groups) == blocks
    found = Geometry(groups=tuple(groups), kernel_chunk=KernelChunk(64), max_model_len=9000, bytes_per_block=Bytes(1))
    assert found.scheduler_block.tokens == common
    assert found.config_minimum.tokens == min(blocks)
    assert found.hash_unit.tokens == {(544, 544, 64): 32}.get(blocks, 544)
    assert found.hit_unit.tokens == common  # a window can't take a hit inside its block


def test_layers_are_split_into_groups_of_one_size() -> None:
    def shape(*layers: int) -> list[tuple[int, int]]:
        return [(g.layers, g.copies) for g in split([LayerSpec(Role.STATE, "", n, 1, 1, 1) for n in layers])]

    assert shape(12, 36) == [(12, 1), (12, 3)]
    assert shape(17, 48) == [(17, 1), (17, 3)]  # three empty layers pad the last group
    assert shape(12, 13) == [(13, 1), (13, 1)]  # close counts share the larger size


def test_groups_that_disagree_are_refused_with_a_message_that_shows_them() -> None:
    groups = split([replace(TARGET[1], block=b, label=f"layers of {b}") for b in (816, 1648)])
    with pytest.raises(ConfigurationError, match="layers of 816: 816; layers of 1648: 1648"):
        state_grid(groups)
    with pytest.raises(ConfigurationError, match="disagree"):
        frame_of(
            Geometry(groups=tuple(groups), kernel_chunk=KernelChunk(64), max_model_len=1, bytes_per_block=Bytes(1)),
            Budget(2048, 2048, 1),
        )


def test_a_match_unit_below_the_grid_makes_hits_fine() -> None:
    found = geometry(Q3N, "--prefix-match-unit", "32")
    assert (found.hash_unit.tokens, found.hit_unit.tokens, found.fine_grained) == (32, 32, True)
    with pytest.raises(ConfigurationError, match="doesn't divide the blocks 544"):
        geometry(Q3N, "--prefix-match-unit", "64")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--prefix-cache-retention-interval", "1000"), "1000 is not a multiple of the scheduler's block 544"),
        (("-tp", "5"), "can't be split over 5"),
        (("--attention-backend", "MAGIC"), "MAGIC"),
        (("--speculative-config", '{"method": "telepathy"}'), "unknown method 'telepathy'"),
        (("--speculative-config", '{"method": "ngram"}'), "needs num_speculative_tokens"),
        (("--speculative-config", '{"num_speculative_tokens": 2}'), "needs a method"),
    ],
)
def test_what_vllm_would_refuse_is_refused_with_the_numbers(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        geometry(Q3N, *flags)


def test_kda_state_dtypes() -> None:
    with pytest.raises(ConfigurationError, match="float32 or bfloat16 only"):
        geometry(KIMI, "--mamba-ssm-cache-dtype", "float16")
    assert geometry(KIMI, "--mamba-ssm-cache-dtype", "bfloat16").grid.tokens == 1024


def test_latent_attention_turns_the_cache_off_on_a_cpu() -> None:
    assert not geometry(KIMI, gpu="cpu").caching
    assert geometry(KIMI).caching


def test_without_the_cache_a_state_spans_the_whole_context() -> None:
    found = geometry(Q3N, "--no-enable-prefix-caching", "--max-model-len", "32768")
    assert found.grid.tokens == 32_768
    assert not found.caching
    assert found.fixed_blocks == 3  # one state a group, nothing to keep beside it


def test_internal_checkpoints_by_family_and_platform() -> None:
    assert geometry(tiny_models.granite(), gpu="cpu").checkpoint_step == 1
    assert geometry(KIMI).checkpoint_step == 16
    assert geometry(KIMI, gpu="a100").checkpoint_step is None
    assert geometry(Q3N).checkpoint_step is None


def test_which_groups_give_back_a_block() -> None:
    mtp = geometry(Q3N, "--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
    assert {g.role for g in mtp.groups if g.dropped} == {Role.ATTENTION}
    spec = '{"method": "dflash", "num_speculative_tokens": 7, "model": "x"}'
    drafter = {
        "num_hidden_layers": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_size": 1,
    }
    dflash = geometry(Q3N, "--speculative-config", spec, drafter=drafter)
    assert all(g.dropped for g in dflash.groups)  # vLLM can't tell which group is the drafter's
    assert dflash.drafting.slots == 7
    off = geometry(Q3N, "--speculative-config", spec[:-1] + ', "disable_eagle_block_drop": true}', drafter=drafter)
    assert not any(g.dropped for g in off.groups)


def test_g7_a_page_and_a_grid_are_tied() -> None:
    """1Cat-vLLM#645: a coarser grid can only be had with a coarser page here, and the report says so in its numbers."""
    fine, coarse = geometry(Q3N), geometry(Q3N, "--block-size", "1024")
    assert (fine.grid.tokens, coarse.grid.tokens) == (544, 2048 // 2)
    assert [g.unit.tokens for g in coarse.groups] == [1024, 1024]


def test_skipped_layers_raise_the_attention_block_but_not_the_grid() -> None:
    found = geometry(Q3N, "--kv-cache-dtype", "fp8", "--kv-cache-dtype-skip-layers", "3", "7")
    assert found.grid.tokens < found.scheduler_block.tokens
