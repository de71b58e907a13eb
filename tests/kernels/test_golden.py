"""Bits are a contract: a change of any kernel's bits is noticed, on each instruction set that was recorded."""

from __future__ import annotations

import pytest

from tests.kernels import golden
from tests.kernels.inputs import ISAS

RECORDED = golden.recorded()
CASES = [(isa, name) for isa in ISAS if isa in RECORDED for name in golden.KERNELS]


@pytest.mark.parametrize(("isa", "name"), CASES)
def test_the_bits_are_the_recorded_ones(isa: str, name: str) -> None:
    assert golden.KERNELS[name](isa) == RECORDED[isa][name], f"{name} on {isa} gives other bits than before"


def test_every_kernel_is_recorded_for_what_any_x86_machine_can_run() -> None:
    for isa in ("portable", "avx2", "avx512_bf16_emulated", "amx_bf16_emulated"):
        assert sorted(RECORDED[isa]) == sorted(golden.KERNELS), isa


@pytest.mark.parametrize("isa", ["avx512_bf16", "amx_bf16"])
def test_the_emulation_gives_the_bits_of_the_hardware(isa: str) -> None:
    assert RECORDED[isa] == RECORDED[f"{isa}_emulated"]


def test_instruction_sets_differ_where_they_should() -> None:
    # were they equal, an isa would be running another's kernels
    for name in ("linear bfloat16 1", "gated_delta_net", "attention bfloat16"):
        assert len({RECORDED[isa][name] for isa in ("portable", "avx2", "avx512_bf16_emulated")}) == 3, name
    assert RECORDED["amx_bf16"]["linear bfloat16 70"] != RECORDED["avx512_bf16"]["linear bfloat16 70"]
