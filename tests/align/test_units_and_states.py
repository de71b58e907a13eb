"""Units that can't be mixed up, and the bytes of every kind of state."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from statemark.align import units
from statemark.align.kv_bytes import token_bytes
from statemark.align.shape import AttentionShape, RingShape
from statemark.align.states import (
    GatedDelta,
    KimiDelta,
    LightningAttention,
    Mamba1,
    Mamba2,
    ShortConv,
    StateDtypes,
    dtype_bytes,
    state_bytes,
)
from statemark.align.units import AttentionPage, DraftPage, HashUnit, KernelChunk, StateGrid
from statemark.errors import ConfigurationError

KINDS = [c for c in vars(units).values() if isinstance(c, type) and issubclass(c, units.Unit) and c is not units.Unit]


@pytest.mark.parametrize("kind", KINDS)
def test_a_unit_equals_only_its_own_kind(kind: type[units.Unit]) -> None:
    assert [other for other in KINDS if other(64) == kind(64)] == [kind]


def test_boundaries() -> None:
    grid = StateGrid(1568)
    assert [grid.floor(p) for p in (0, 1567, 1568, 3135)] == [0, 0, 1568, 1568]
    assert [grid.ceil(p) for p in (0, 1, 1568, 1569)] == [0, 1568, 1568, 3136]
    assert [grid.after(p) for p in (0, 1567, 1568)] == [1568, 1568, 3136]
    assert grid.on(0)
    assert grid.on(3136)
    assert not grid.on(1)
    assert StateGrid(96).holds(HashUnit(32))
    assert not StateGrid(96).holds(HashUnit(64))


@pytest.mark.parametrize("tokens", [0, -4])
def test_a_unit_has_at_least_one_token(tokens: int) -> None:
    with pytest.raises(ConfigurationError, match="StateGrid must be at least 1 token"):
        StateGrid(tokens)


MIXED = """
from statemark.align.frame import Frame
from statemark.align.units import *

def save_at(grid: StateGrid) -> None: ...

save_at(AttentionPage(64))
save_at(HashUnit(64))
save_at(KernelChunk(64))
save_at(DraftPage(64))
save_at(64)
save_at(StateGrid(64))
"""


@pytest.mark.slow
def test_the_type_checker_refuses_every_mix(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "mixed.py"
    file.write_text(MIXED)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line for line in done.stdout.splitlines() if "incompatible type" in line]
    assert len(wrong) == 5, done.stdout


BF16 = StateDtypes("bfloat16", "bfloat16")
FP32 = StateDtypes("bfloat16", "float32")


@pytest.mark.parametrize(
    ("kind", "dtypes", "ranks", "drafts", "expected"),
    [
        (GatedDelta(4, 8, 64, 64, 4), FP32, 1, 0, 137_216),
        (GatedDelta(16, 16, 128, 128, 4), FP32, 1, 0, 1_085_440),
        (GatedDelta(16, 32, 128, 128, 4), BF16, 1, 0, 1_097_728),
        (GatedDelta(16, 32, 128, 128, 4), FP32, 1, 0, 2_146_304),
        (GatedDelta(16, 32, 128, 128, 4), BF16, 2, 0, 548_864),
        (GatedDelta(16, 48, 128, 128, 4), FP32, 1, 0, 3_207_168),
        (GatedDelta(16, 48, 128, 128, 4), FP32, 1, 1, 3_207_168 + 10_240 * 2),
        (Mamba2(512, 1, 8, 64, 64, 4), FP32, 1, 0, 134_912),
        (KimiDelta(32, 128, 4), FP32, 1, 0, 2_170_880),
        (KimiDelta(32, 128, 4), FP32, 8, 0, 271_360),
        (Mamba1(512, 16, 4), FP32, 1, 3, 512 * 3 * 2 + 512 * 16 * 4),
        (ShortConv(2048, 3), BF16, 2, 0, 2 * 1024 * 2),
        (ShortConv(2048, 3, replicated=True), BF16, 2, 1, 3 * 2048 * 2),
        (LightningAttention(64, 128), FP32, 8, 5, 8 * 128 * 128 * 2),
    ],
)
def test_state_bytes(kind, dtypes: StateDtypes, ranks: int, drafts: int, expected: int) -> None:  # type: ignore[no-untyped-def]
    assert state_bytes(kind.tensors(ranks, drafts, dtypes)) == expected


def test_mamba2_repeats_groups_that_the_ranks_do_not_divide() -> None:
    whole = Mamba2(512, 2, 8, 64, 64, 4).tensors(4, 0, BF16)[0].shape
    assert whole == (3, (512 + 2 * 4 * 64) // 4)


def test_a_state_that_the_ranks_do_not_divide_is_refused_with_the_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"value heads \(48\) can't be split over 5"):
        GatedDelta(20, 48, 128, 128, 4).tensors(5, 0, BF16)


GQA = AttentionShape(kv_heads=4, head_dim=256)


@pytest.mark.parametrize(
    ("dtype", "ranks", "expected"),
    [
        ("auto", 1, 4096),
        ("auto", 2, 2048),
        ("auto", 4, 1024),
        ("auto", 8, 1024),  # heads that the ranks outnumber are repeated
        ("fp8", 1, 2048),
        ("int8_per_token_head", 1, 4 * (512 + 8)),
        ("int4_per_token_head", 1, 4 * (256 + 8)),
        ("nvfp4", 1, 4 * 2 * (128 + 16)),
        ("turboquant_k8v4", 1, 4 * (256 + 128 + 4)),
        ("turboquant_3bit_nc", 1, 4 * (96 + 2 + 96 + 4)),
    ],
)
def test_attention_bytes_of_a_token(dtype: str, ranks: int, expected: int) -> None:
    assert token_bytes(GQA, dtype, "bfloat16", ranks) == expected


def test_latent_attention_is_the_same_on_every_rank() -> None:
    latent = AttentionShape(kv_heads=1, head_dim=576, value_dim=0, latent=True)
    assert {token_bytes(latent, "auto", "bfloat16", ranks) for ranks in (1, 2, 8)} == {1152}
    assert token_bytes(latent, "fp8_ds_mla", "bfloat16", 1) == 656
    with pytest.raises(ConfigurationError, match="latent"):
        token_bytes(latent, "nvfp4", "bfloat16", 1)


def test_rings_grow_with_the_draft_depth() -> None:
    qsa, kpool = RingShape("", 16, False), RingShape("", 16, True)
    assert [qsa.block(q) for q in (0, 1, 16, 17, 33)] == [16, 32, 32, 48, 64]
    assert [kpool.block(q) for q in (0, 1, 16, 17, 33)] == [16, 32, 32, 64, 64]


def test_unknown_dtype_names_the_known() -> None:
    with pytest.raises(ConfigurationError, match="int3") as caught:
        dtype_bytes("int3")
    assert "bfloat16" in caught.value.hint


def test_pages_and_chunks_are_units_too() -> None:
    assert {type(u) for u in (AttentionPage(1), DraftPage(1), KernelChunk(1))} < set(KINDS)


def test_align_imports_nothing_beyond_the_standard_library() -> None:
    root = Path(units.__file__).parent
    names = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names.add(node.module or "")
    own = {n for n in names if n.startswith("statemark")}
    assert {n for n in own if not n.startswith("statemark.align")} == {"statemark.errors"}
    assert {n.partition(".")[0] for n in names - own} <= set(sys.stdlib_module_names)


def test_the_public_names_are_those_that_are_exported() -> None:
    spec = importlib.util.spec_from_file_location("public_names", Path(units.__file__).with_name("__init__.py"))
    assert spec is not None
    assert spec.loader is not None
    align = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(align)
    public = {n for n, value in vars(align).items() if not n.startswith("_") and not isinstance(value, ModuleType)}
    assert public == set(align.__all__)
