"""What `check` finds, when it keeps quiet, and what its numbers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statemark.align.configuration import Setup, make_setup
from statemark.align.findings import RULES, Finding, Level, find
from statemark.align.findings.reach import minimum_prompt
from statemark.align.report import as_json, as_text
from statemark.errors import CheckpointError, ConfigurationError
from tests.align import tiny_models
from tests.align.test_families import KIMI
from tests.align.test_geometry import DENSE_27B, GLM, Q3N

DFLASH = '{"method": "dflash", "num_speculative_tokens": 7, "model": "%s"}'


def configured(tmp_path: Path, config: dict[str, Any], *flags: str, **options: Any) -> Setup:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    return make_setup([str(file), *flags], **options)


def codes(setup: Setup) -> dict[str, Finding]:
    return {f.code: f for f in find(setup)}


@pytest.mark.parametrize(
    ("flags", "idle"),
    [
        (("--max-num-batched-tokens", "2048"), 0.4375),
        (("--max-num-batched-tokens", "3072"), None),
        (("--max-num-batched-tokens", "8192"), None),
        (("--max-num-batched-tokens", "2048", "--long-prefill-token-threshold", "512"), None),
        (("--max-num-batched-tokens", "1024"), None),  # the block is larger than the budget: chunks advance inside it
    ],
)
def test_s1_idle_budget_and_its_two_silent_cases(tmp_path: Path, flags: tuple[str, ...], idle: float | None) -> None:
    finding = codes(configured(tmp_path, GLM, "-tp", "4", *flags)).get("idle-budget")
    assert (finding and finding.numbers["idle_share"]) == idle


@pytest.mark.parametrize(
    ("config", "flags", "warns"),
    [
        (GLM, ("-tp", "4"), True),  # 1152: 44 %
        (DENSE_27B, ("--kv-cache-dtype", "fp8"), False),  # 1568: 23 %
        (DENSE_27B, ("--block-size", "1600"), False),  # 1600: 22 %
        (Q3N, (), False),  # 544: 20 %
        (DENSE_27B, ("--block-size", "3136"), False),  # 23 % idle, but the block is above the budget
    ],
)
def test_idle_budget_predictions(tmp_path: Path, config: dict[str, Any], flags: tuple[str, ...], warns: bool) -> None:
    setup = configured(tmp_path, config, *flags, "--max-num-batched-tokens", "2048")
    assert ("idle-budget" in codes(setup)) == warns


def test_the_default_number_of_requests_never_exceeds_the_budget(tmp_path: Path) -> None:
    """1,024 by default on this GPU; vLLM lowers its own default, and refuses a flag."""
    assert configured(tmp_path, Q3N, "--max-num-batched-tokens", "600").budget.requests == 600
    assert configured(tmp_path, Q3N, "--max-num-batched-tokens", "2048").budget.requests == 1024
    with pytest.raises(ConfigurationError, match=r"\(600\) is below max_num_seqs \(700\)"):
        configured(tmp_path, Q3N, "--max-num-batched-tokens", "600", "--max-num-seqs", "700")


def test_the_suggested_budget_is_quiet(tmp_path: Path) -> None:
    first = codes(configured(tmp_path, GLM, "-tp", "4", gpu="h100-64"))["idle-budget"]
    better = str(first.numbers["suggested_budget"])
    assert "idle-budget" not in codes(configured(tmp_path, GLM, "-tp", "4", "--max-num-batched-tokens", better))


def test_g6_cache_inert(tmp_path: Path) -> None:
    config = Q3N | {"linear_num_value_heads": 256}
    wide = ("--mamba-ssm-cache-dtype", "float32", "--kv-cache-dtype", "fp8")
    setup = configured(tmp_path, config, *wide, "--max-model-len", "4096")
    assert setup.frame.grid.tokens > 4096
    finding = codes(setup)["cache-inert"]
    assert finding.level is Level.ERROR
    assert "minimum-prefix" not in codes(setup)
    roomy = configured(tmp_path, config, *wide, "--max-model-len", str(setup.frame.grid.tokens + 1))
    assert "cache-inert" not in codes(roomy)
    assert codes(roomy)["minimum-prefix"].level is Level.WARNING


def test_g5_minimum_prefix_doubles_with_a_drafter(tmp_path: Path) -> None:
    plain = codes(configured(tmp_path, Q3N))["minimum-prefix"]
    spec = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 2}')
    mtp = codes(configured(tmp_path, Q3N, *spec))["minimum-prefix"]
    assert (plain.numbers["minimum_shared"], mtp.numbers["minimum_shared"]) == (544, 2 * 560)  # drafts widen a state
    fine = configured(tmp_path, Q3N, "--prefix-match-unit", "16")
    assert codes(fine)["minimum-prefix"].numbers["minimum_shared"] == 544  # L8: it refines hits, it places no states
    assert minimum_prompt(fine) == 17


def test_a_match_unit_is_only_advised_where_it_is_safe(tmp_path: Path) -> None:
    assert "--prefix-match-unit 32" in codes(configured(tmp_path, Q3N))["minimum-prefix"].remedy
    mamba = codes(configured(tmp_path, tiny_models.granite(), gpu="cpu"))["minimum-prefix"]
    assert "--prefix-match-unit" not in mamba.remedy


def test_stalled_prompt_names_the_slots(tmp_path: Path) -> None:
    drafter = tmp_path / "drafter"
    drafter.mkdir()
    (drafter / "config.json").write_text(
        json.dumps({"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128})
    )
    flags = ("--speculative-config", DFLASH % drafter)
    grid = configured(tmp_path, Q3N, *flags).frame.config_minimum.tokens
    finding = codes(configured(tmp_path, Q3N, *flags, "--max-num-batched-tokens", str(grid), "--max-num-seqs", "8"))
    assert finding["stalled-prompt"].level is Level.ERROR
    assert finding["stalled-prompt"].numbers["draft_slots"] == 7
    assert "head-of-line" not in finding
    free = codes(configured(tmp_path, Q3N, *flags, "--max-num-batched-tokens", str(grid + 7), "--max-num-seqs", "8"))
    assert "stalled-prompt" not in free


def test_head_of_line_counts_the_decodes(tmp_path: Path) -> None:
    """Block 1568, budget 2048: 481 tokens taken stop every prefill; 121 requests with three drafts take as many."""
    flags = ("--kv-cache-dtype", "fp8", "--max-num-batched-tokens", "2048")
    assert "head-of-line" not in codes(configured(tmp_path, DENSE_27B, *flags, gpu="h100-64"))
    spec = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
    setup = configured(tmp_path, DENSE_27B, *flags, *spec, gpu="h100-64")
    assert setup.frame.grid.tokens == 1600
    assert codes(setup)["head-of-line"].numbers["requests"] == (2048 - 1600) // 4 + 1
    assert "head-of-line" not in codes(configured(tmp_path, DENSE_27B, *flags, *spec, concurrency=16))


def swa_drafter(tmp_path: Path, **changes: Any) -> str:
    folder = tmp_path / "drafter"
    folder.mkdir(exist_ok=True)
    shape = {"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    (folder / "config.json").write_text(
        json.dumps(shape | {"sliding_window": 2048, "layer_types": ["sliding_attention"] * 4} | changes)
    )
    return str(folder)


def test_6_1_wrong_grid_shows_what_an_entry_would_hold(tmp_path: Path) -> None:
    spec = (DFLASH % swa_drafter(tmp_path))[:-1] + ', "attention_backend": "FLASHINFER"}'
    finding = codes(configured(tmp_path, Q3N, "--speculative-config", spec))["wrong-grid"]
    assert finding.level is Level.ERROR
    assert finding.numbers["config_minimum"] == 64
    assert 0 < int(finding.numbers["holds"]) < int(finding.numbers["entry"])
    assert "wrong-grid" not in codes(configured(tmp_path, Q3N))


def test_6_5_hit_unit_above_the_grid_shows_the_hits(tmp_path: Path) -> None:
    setup = configured(tmp_path, Q3N, "--speculative-config", DFLASH % swa_drafter(tmp_path, num_key_value_heads=2))
    finding = codes(setup)["hit-unit-above-grid"]
    assert finding.numbers["second_hit"] == 0
    assert int(finding.numbers["hit_unit"]) == 2 * setup.frame.grid.tokens


def test_6_8_back_off_is_for_drafters_that_write_the_targets_blocks(tmp_path: Path) -> None:
    spec = DFLASH % swa_drafter(tmp_path, num_key_value_heads=4)
    assert "back-off-without-need" in codes(configured(tmp_path, Q3N, "--speculative-config", spec))
    off = spec[:-1] + ', "disable_eagle_block_drop": true}'
    assert "back-off-without-need" not in codes(configured(tmp_path, Q3N, "--speculative-config", off))
    mtp = '{"method": "mtp", "num_speculative_tokens": 2}'
    assert "back-off-without-need" not in codes(configured(tmp_path, Q3N, "--speculative-config", mtp))


def test_6_10_fine_match_unit_with_internal_checkpoints(tmp_path: Path) -> None:
    granite = tiny_models.granite()
    finding = codes(configured(tmp_path, granite, "--prefix-match-unit", "16", gpu="cpu"))["stale-checkpoint"]
    assert finding.level is Level.ERROR
    assert 0 < int(finding.numbers["holds"]) < int(finding.numbers["entry"])
    assert "stale-checkpoint" not in codes(configured(tmp_path, granite, gpu="cpu"))
    assert "stale-checkpoint" not in codes(configured(tmp_path, Q3N, "--prefix-match-unit", "16"))


def test_6_14_an_interval_that_adds_no_stops(tmp_path: Path) -> None:
    flags = ("--prefix-cache-retention-interval", "4352", "--max-num-batched-tokens", "2048")
    finding = codes(configured(tmp_path, Q3N, *flags))["interval-without-stops"]
    assert (finding.numbers["due"], finding.numbers["present"]) == (7, 3) or finding.numbers["present"] == 2
    assert "interval-without-stops" not in codes(configured(tmp_path, Q3N))


def test_multi_module_mtp_stalls(tmp_path: Path) -> None:
    config = Q3N | {"num_nextn_predict_layers": 3}
    spec = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 3}')
    finding = codes(configured(tmp_path, config, *spec, "--max-num-batched-tokens", "560", "--max-num-seqs", "8"))[
        "stalled-by-modules"
    ]
    assert finding.level is Level.ERROR
    assert int(finding.numbers["prompt"]) % int(finding.numbers["block"]) in (1, 2)
    one = ("--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1}')
    assert "stalled-by-modules" not in codes(configured(tmp_path, config, *one))


def test_f5_and_g8_too_few_states(tmp_path: Path) -> None:
    few = codes(configured(tmp_path, Q3N, "--kv-cache-memory-bytes", "2G", "--max-num-seqs", "512"))["few-states"]
    assert few.level is Level.WARNING
    setup = configured(tmp_path, Q3N, "--kv-cache-memory-bytes", "16G", "--max-num-seqs", "64", concurrency=500)
    assert "few-states" in codes(setup)
    plenty = configured(tmp_path, Q3N, "--kv-cache-memory-bytes", "64G", "--max-num-seqs", "64", concurrency=16)
    assert "few-states" not in codes(plenty)


def test_encoder_limits_only_for_models_that_see(tmp_path: Path) -> None:
    seeing = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": DENSE_27B,
        "vision_config": {"depth": 1},
    }
    assert "encoder-limits" in codes(configured(tmp_path, seeing))
    assert "encoder-limits" not in codes(configured(tmp_path, seeing, "--language-model-only"))
    assert "encoder-limits" not in codes(configured(tmp_path, DENSE_27B))


def test_f1_f2_settings_without_effect_are_named(tmp_path: Path) -> None:
    setup = configured(tmp_path, Q3N, "--mamba-cache-mode", "none", "--mamba-block-size", "64", "--block-size", "64")
    sentence = codes(setup)["ignored-flags"].sentence
    assert "becomes align" in sentence
    assert "--mamba-block-size 64 (the grid is 576)" in sentence
    assert codes(configured(tmp_path, Q3N, "--no-enable-prefix-caching"))["cache-off"].level is Level.INFO
    assert codes(configured(tmp_path, KIMI, gpu="cpu"))["cache-off"].level is Level.WARNING


def test_match_unit_that_a_window_disables(tmp_path: Path) -> None:
    spec = DFLASH % swa_drafter(tmp_path, num_key_value_heads=4)
    setup = configured(tmp_path, Q3N, "--speculative-config", spec, "--prefix-match-unit", "16")
    assert "match-unit-disabled" in codes(setup)


def test_match_unit_off_the_kernels_chunks(tmp_path: Path) -> None:
    assert "match-unit-off-kernel" in codes(configured(tmp_path, Q3N, "--prefix-match-unit", "16"))
    even = configured(tmp_path, Q3N, "--block-size", "64", "--prefix-match-unit", "64")
    assert "match-unit-off-kernel" not in codes(even)


def test_uneven_chunks_from_two_blocks_a_step(tmp_path: Path) -> None:
    assert "uneven-chunks" in codes(configured(tmp_path, Q3N, "--max-num-batched-tokens", "1088"))
    assert "uneven-chunks" not in codes(configured(tmp_path, Q3N, "--max-num-batched-tokens", "1087"))


def test_a_family_that_vllm_no_longer_serves(tmp_path: Path) -> None:
    config = tiny_models.granite(architectures=["BambaForCausalLM"], model_type="bamba", attn_layer_indices=[3, 7])
    assert codes(configured(tmp_path, config))["architecture-gone"].numbers == {"since": "0.23"}


def test_a_drafter_that_is_not_there_is_said(tmp_path: Path) -> None:
    setup = configured(tmp_path, Q3N, "--speculative-config", DFLASH % "./nowhere")
    assert "drafter-unknown" in codes(setup)
    assert "left out" in setup.notes[0]
    with pytest.raises(CheckpointError, match="nowhere"):
        configured(tmp_path, Q3N, "--speculative-config", DFLASH % "./nowhere", drafter="./nowhere")


def test_a_plain_configuration_has_no_error(tmp_path: Path) -> None:
    setup = configured(tmp_path, Q3N, "--max-num-batched-tokens", "8192", gpu="h100")
    assert {f.level for f in find(setup)} <= {Level.INFO}


def test_every_code_is_explained_in_the_docs(tmp_path: Path) -> None:
    import inspect
    import re

    text = (Path(__file__).parents[2] / "docs" / "align.md").read_text(encoding="utf-8")
    source = "".join(inspect.getsource(inspect.getmodule(rule)) for rule in RULES)  # type: ignore[arg-type]
    for code in set(re.findall(r'code="([a-z-]+)"', source)):
        assert f"`{code}`" in text, code


def test_findings_come_worst_first_and_say_what_to_change(tmp_path: Path) -> None:
    spec = (DFLASH % swa_drafter(tmp_path))[:-1] + ', "attention_backend": "FLASHINFER"}'
    found = find(configured(tmp_path, Q3N, "--speculative-config", spec))
    assert [f.level.rank for f in found] == sorted((f.level.rank for f in found), reverse=True)
    assert all(f.sentence.endswith(".") and f.remedy for f in found)


def test_the_report_carries_the_same_numbers_as_its_json(tmp_path: Path) -> None:
    setup = configured(tmp_path, GLM, "-tp", "4", gpu="h100-64")
    text, data = as_text(setup, find(setup)), as_json(setup, find(setup))
    assert data["step"]["idle_share"] == 0.4375
    assert "44% idle" in text
    assert data["units"]["state_grid"] == 1152
    assert "1152 tokens" in text
    assert data["states"]["bytes"] == 34 * 1_085_440
    assert as_json(setup, find(setup)) == json.loads(json.dumps(data))


def test_memory_is_estimated_from_weights_on_a_named_gpu(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(Q3N))
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.truncate(10 << 30)
    setup = make_setup([str(tmp_path), "-tp", "2"], gpu="h100")
    assert setup.memory is not None
    assert not setup.memory_known
    assert make_setup([str(tmp_path)]).memory is None  # the GPU is only assumed


def test_overrides_change_the_model(tmp_path: Path) -> None:
    setup = configured(tmp_path, Q3N, "--hf-overrides", '{"num_key_value_heads": 4}')
    assert setup.frame.grid.tokens == 272


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([], ConfigurationError, "no model is named"),
        (["./nowhere"], CheckpointError, "there is no model at ./nowhere"),
    ],
)
def test_missing_models_are_named(arguments: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_setup(arguments)


def test_broken_configs_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": 1,\n  b}')
    with pytest.raises(CheckpointError, match=r"not valid JSON: .*, line 2, column 3"):
        make_setup([str(tmp_path)])
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        make_setup([str(tmp_path / "config.json")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        make_setup([str(tmp_path / "empty")])
