"""The mapped reader against the safetensors library, and every way in which a file can be broken."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from statemark.errors import CheckpointError
from statemark.models import safetensors_file
from statemark.models.safetensors_file import SafetensorsFile


def write_raw(path: Path, header: bytes, body: bytes = b"") -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header + body)
    return path


def header(**tensors: tuple[str, list[int], list[int]]) -> bytes:
    return json.dumps({n: {"dtype": d, "shape": s, "data_offsets": o} for n, (d, s, o) in tensors.items()}).encode()


def test_values_are_those_of_the_library(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.normal(size=(5, 7)).astype(np.float32),
        "b": rng.normal(size=(3,)).astype(np.float16),
        "c": rng.normal(size=(4, 1, 2)).astype(np.float32),
        "odd": np.arange(3, dtype=np.uint8),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.tensors) == set(tensors)
    for name in "abc":
        assert file.tensors[name].shape == tensors[name].shape
        np.testing.assert_array_equal(file.array(name), tensors[name])


@pytest.mark.parametrize("block_bytes", [1, 28, 64, 10_000])
def test_blocks_cover_a_matrix_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    matrix = np.arange(9 * 7, dtype=np.float32).reshape(9, 7)
    save_file({"m": matrix}, tmp_path / "x.safetensors")
    monkeypatch.setattr(safetensors_file, "BLOCK_BYTES", block_bytes)
    seen = 0
    for row, block in SafetensorsFile(tmp_path / "x.safetensors").blocks("m"):
        assert row == seen
        np.testing.assert_array_equal(block, matrix[row : row + len(block)])
        seen += len(block)
    assert seen == 9


def test_blocks_larger_than_pages_survive_the_release_of_earlier_ones(tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).normal(size=(3000, 500)).astype(np.float32)  # 6 MB: several blocks
    save_file({"m": matrix, "n": matrix[:7] + 1}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    for _ in range(2):  # released pages come back from the file
        np.testing.assert_array_equal(np.concatenate([b.copy() for _, b in file.blocks("m")]), matrix)
    np.testing.assert_array_equal(file.array("n"), matrix[:7] + 1)


def test_unaligned_tensors_are_handed_out_aligned(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for shift in range(8):  # one of them puts the tensor at an address that float32 can't use directly
        raw = header(m=("F32", [2, 3], [1, 25]), pad=("U8", [1], [0, 1])) + b" " * shift
        path = write_raw(tmp_path / f"{shift}.safetensors", raw, b"\0" + values.tobytes())
        [(_, block)] = SafetensorsFile(path).blocks("m")
        assert block.flags.aligned
        np.testing.assert_array_equal(block, values)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "0 bytes long"),
        (b"\1\2\3", "3 bytes long"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "announces a header of 1099511627776 bytes but is 10 bytes long"),
        ((5).to_bytes(8, "little") + b"{{{{{", "not safetensors"),
        ((2).to_bytes(8, "little") + b"[]", "not safetensors"),
        ((7).to_bytes(8, "little") + b'{"a":1}', "not safetensors"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(path)
    assert part in error.value.message
    assert "bad.safetensors" in error.value.message
    assert error.value.hint


def test_truncation_names_both_sizes(tmp_path: Path) -> None:
    save_file({"m": np.zeros((100, 100), np.float32)}, tmp_path / "x.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").write_bytes(whole[:-1])
    with pytest.raises(CheckpointError) as error:
        SafetensorsFile(tmp_path / "x.safetensors")
    assert f"truncated: its tensors need {len(whole)} bytes, it has {len(whole) - 1}" in error.value.message


@pytest.mark.parametrize("offsets", [[0, 20], [8, 0], [0, 28]])
def test_offsets_that_disagree_with_the_shape(tmp_path: Path, offsets: list[int]) -> None:
    path = write_raw(tmp_path / "x.safetensors", header(m=("F32", [2, 3], offsets)), b"\0" * 64)
    with pytest.raises(CheckpointError, match="tensor m of F32"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    ("shape", "offsets"), [([2, 3], [-8, 16]), ([-2, -3], [0, 24]), ([2.0, 3], [0, 24]), ([2, 3], [0, 24.0])]
)
def test_numbers_that_are_no_sizes(tmp_path: Path, shape: list[int], offsets: list[int]) -> None:
    path = write_raw(tmp_path / "x.safetensors", header(m=("F32", shape, offsets)), b"\0" * 64)
    with pytest.raises(CheckpointError, match="not safetensors: tensor m has shape"):
        SafetensorsFile(path)


def test_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(CheckpointError, match=r"x\.safetensors can't be read: Is a directory"):
        SafetensorsFile(tmp_path / "x.safetensors")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_to_the_header_escapes_as_another_error(data: st.DataObject) -> None:
    raw = bytearray(header(a=("F32", [2, 3], [0, 24]), b=("BF16", [4], [24, 32])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789-.[]{},:"e')))
    with tempfile.TemporaryDirectory() as folder:
        path = write_raw(Path(folder) / "x.safetensors", bytes(raw), b"\0" * 32)
        entries = {}
        with contextlib.suppress(CheckpointError):
            entries = SafetensorsFile(path).tensors
        assert all(0 <= e.start <= e.end <= path.stat().st_size for e in entries.values())


def test_a_header_nested_beyond_reason(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", b"[" * 100_000)
    with pytest.raises(CheckpointError, match="not safetensors"):
        SafetensorsFile(path)


def test_unknown_types_are_listed_not_refused(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", header(m=("F4", [2, 3], [0, 3])), b"\0" * 3)
    assert SafetensorsFile(path).tensors["m"].dtype == "F4"
