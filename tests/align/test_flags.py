"""Command lines of `vllm serve` as people paste them."""

from __future__ import annotations

import pytest

from statemark.align.command_line import parse_integer
from statemark.align.flags import ServeFlags, parse_serve_flags
from statemark.errors import ConfigurationError

MTP = '{"method": "mtp", "num_speculative_tokens": 2}'


def parse(*words: str) -> ServeFlags:
    return parse_serve_flags(["model", *words])[1]


def test_nothing_given() -> None:
    assert parse_serve_flags(["Qwen/X"]) == ("Qwen/X", ServeFlags())


@pytest.mark.parametrize(
    "words",
    [
        ["vllm", "serve", "m", "-tp", "4", "--max-num-batched-tokens", "8192"],
        ["m", "--tensor-parallel-size=4", "--max_num_batched_tokens=8192"],
        ["--model", "m", "--tensor_parallel_size", "4", "--max-num-batched-tokens", "8K"],
        ["vllm serve m -tp 4 \\\n  --max-num-batched-tokens 8192"],
        ["m", "\\", "-tp", "4", "--max-num-batched-tokens", "8192", "--max-num-batched-tokens", "8192"],
    ],
)
def test_spellings(words: list[str]) -> None:
    model, flags = parse_serve_flags(words)
    assert (model, flags.tensor_parallel, flags.max_num_batched_tokens) == ("m", 4, 8192)


def test_flags_that_do_not_matter_are_passed_over_with_their_values() -> None:
    flags = parse(
        "--port", "8000", "--host", "0.0.0.0", "--served-model-name", "a", "b", "--trust-remote-code",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--middleware", "x", "-dp", "2",
    )  # fmt: skip
    assert flags == ServeFlags()


def test_speculative_config_as_json_and_by_parts() -> None:
    whole = parse("--speculative-config", MTP).speculative
    parts = parse("--speculative-config.method", "mtp", "--speculative-config.num_speculative_tokens", "2").speculative
    short = parse("--spec-method", "mtp", "--spec-tokens", "2").speculative
    assert whole is not None
    assert (whole.method, whole.depth) == ("mtp", 2)
    assert whole == parts == short


def test_retention() -> None:
    assert parse().retention_interval == 0
    assert parse("--prefix-cache-retention-interval", "None").retention_interval is None
    assert parse("--prefix-cache-retention-interval", "4352").retention_interval == 4352


def test_switches() -> None:
    assert parse().prefix_caching is None
    assert parse("--enable-prefix-caching").prefix_caching is True
    assert parse("--no-enable-prefix-caching").prefix_caching is False
    assert parse("--language-model-only").text_only


def test_backend_from_either_flag() -> None:
    assert parse("--attention-backend", "FLASHINFER").attention_backend == "FLASHINFER"
    assert parse("--attention-config.backend", "TRITON_ATTN").attention_backend == "TRITON_ATTN"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("1.5k", 1500),
        ("2M", 2 << 20),
        ("x", None),
        ("1.5K", None),
        ("-1", None),
    ],
)
def test_numbers_as_vllm_reads_them(text: str, value: int | None) -> None:
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-num-batched-token", "1"], "no flag --max-num-batched-token"),
        (["-zz", "1"], "no flag -zz"),
        (["--block-size"], "--block-size needs a value"),
        (["--block-size", "0"], "--block-size must be a whole number of at least 1, got '0'"),
        (["--block-size", "many"], "got 'many'"),
        (["--block-size", "16", "--block-size", "32"], "--block-size is given twice, as 16 and as 32"),
        (["--enable-prefix-caching", "--no-enable-prefix-caching"], "contradicts"),
        (["--enable-prefix-caching=yes"], "takes no value"),
        (["--no-enable-prefix-caching", "--prefix-match-unit", "16"], "--prefix-match-unit needs the prefix cache"),
        (["--no-enable-prefix-caching", "--mamba-block-size", "64"], "--mamba-block-size needs the prefix cache"),
        (["--no-enable-prefix-caching", "--mamba-cache-mode", "align"], "contradicts"),
        (["--no-enable-chunked-prefill"], "can't work without chunked prefill"),
        (["--disable-chunked-mm-input"], "free to end inside an image"),
        (["--max-num-batched-tokens", "2048", "--max-num-scheduled-tokens", "4096"], "4096 is above"),
        (["--kv-cache-dtype", "fp9"], "fp9 is not one of"),
        (["--mamba-ssm-cache-dtype", "fp8"], "fp8 is not one of"),
        (["--speculative-config", "{method: mtp}"], "not valid JSON"),
        (["--speculative-config", "[1]"], "must be a JSON object"),
        (["--speculative-config", '{"num_speculative_tokens": 0}'], "must be at least 1"),
        (["--speculative-config", MTP, "--spec-tokens", "3"], "--spec-tokens 3 contradicts"),
        (["--gpu-memory-utilization", "lots"], "must be a number"),
        (["other"], "one model is expected, got 2"),
        (["--model", "other"], "the model is given twice"),
        (["--config", "serve.yaml"], "serve.yaml is not read here"),
    ],
)
def test_bad_and_contradicting_flags_are_named(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace("(", r"\(")):
        parse(*words)


def test_a_misspelt_flag_gets_a_suggestion() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse("--max-num-batched-token", "1")
    assert caught.value.hint == "did you mean --max-num-batched-tokens?"


@pytest.mark.vllm
def test_the_flag_table_is_that_of_the_installed_vllm() -> None:
    pytest.importorskip("vllm")
    from statemark.align import flag_table
    from tests.align.record.serve_flags import tables

    for name, values in tables().items():
        assert getattr(flag_table, name).split() == values
