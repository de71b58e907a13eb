"""A checkpoint file says what it is, and notices every byte that isn't as it was written."""

from __future__ import annotations

import dataclasses
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statemark.cache.digest import PAGE_TOKENS, PrefixChain, root_digest
from statemark.cache.disk.record import Description, Layout, Record, UnusableError, checksum, read_record

LAYOUT = Layout(fingerprint="model", precision="bfloat16", isa="avx2", page_bytes=96, state_bytes=200, stamp_rows=2)
LENGTH = 53


def tokens(count: int = LENGTH) -> np.ndarray:
    return np.arange(100, 100 + count, dtype=np.int32)


def made(position: int = LENGTH, base: int = 1, **changed: Any) -> tuple[Record, list[bytes]]:
    """A valid record and its parts."""
    ids = tokens(position)
    chain = PrefixChain(root_digest("model", "salt"))
    digest = chain.at(ids, position)
    fields: dict[str, Any] = {
        "fingerprint": "model",
        "precision": "bfloat16",
        "isa": "avx2",
        "page_tokens": PAGE_TOKENS,
        "page_bytes": 96,
        "state_bytes": 200,
        "stamp_rows": 2,
        "digest": digest.hex(),
        "base": base,
        "base_digest": chain.page(ids, base).hex(),
        "parent": chain.at(ids, base * PAGE_TOKENS + 1).hex() if base else "",
        "position": position,
        "kind": "turn",
        "prompt_tokens": 60,
        "rate": 123.25,
    }
    description = Description(**(fields | changed))
    count = -(-position // PAGE_TOKENS) - base
    parts = [bytes([i + 1]) * 96 for i in range(count)] + [b"s" * 200]
    sums = np.array([checksum(digest, part) for part in parts], dtype=np.uint64)
    stamps = np.array([[position, 7], [position, 7]], dtype=np.uint64)
    return Record(description, ids[base * PAGE_TOKENS :].tobytes(), sums, stamps), parts


def stored(path: Path, record: Record, parts: list[bytes]) -> Path:
    path.write_bytes(record.header() + b"".join(parts))
    return path


def read(path: Path, layout: Layout = LAYOUT) -> Record:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_record(fd, layout)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("position", "base"), [(53, 1), (53, 0), (48, 2), (16, 0), (1, 0), (48, 3), (50, 3)])
def test_what_was_written_is_read(tmp_path: Path, position: int, base: int) -> None:
    record, parts = made(position, base)
    found = read(stored(tmp_path / "a", record, parts))
    assert found.description == record.description
    assert (found.tokens, found.sums.tolist(), found.stamps.tolist()) == (
        record.tokens,
        record.sums.tolist(),
        record.stamps.tolist(),
    )
    assert found.pages == len(parts) - 1
    raw = (tmp_path / "a").read_bytes()
    for part, content in enumerate(parts):
        at = found.offset(part)
        assert raw[at : at + len(content)] == content
        found.check_part(part, content)
    assert found.offset(0) % 4096 == 0


def test_the_header_can_be_read_by_people(tmp_path: Path) -> None:
    raw = stored(tmp_path / "a", *made()).read_bytes()
    assert raw.startswith(b"STATMARK")
    (length,) = struct.unpack_from("<I", raw, 12)
    said = msgspec.json.decode(raw[32 : 32 + length])
    assert (said["precision"], said["isa"], said["position"]) == ("bfloat16", "avx2", 53)
    assert b"salt" not in raw


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    record, parts = made()
    raw = bytearray(record.header() + b"".join(parts))
    used = len(record.header()) if data.draw(st.booleans()) else len(raw)
    at = data.draw(st.integers(0, used - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path / "a"
    path.write_bytes(raw)
    said = record.description
    exact = 32 + len(msgspec.json.encode(said)) + len(record.tokens) + record.sums.nbytes + record.stamps.nbytes
    noticed = None
    try:
        found = read(path)
        for part, content in enumerate(parts):
            start = found.offset(part)
            found.check_part(part, raw[start : start + len(content)])
    except UnusableError as error:
        noticed = error.reason
    filler = exact <= at < len(record.header())
    assert noticed in ((None,) if filler else ("damaged", "foreign", "truncated"))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.binary(max_size=400), keep=st.integers(0, 400))
def test_rubbish_is_refused(tmp_path: Path, raw: bytes, keep: int) -> None:
    record, _ = made()
    path = tmp_path / "a"
    for content in (raw, record.header()[:keep] + raw, record.header() + raw):
        path.write_bytes(content)
        with pytest.raises(UnusableError):
            read(path)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 100, 4095, 4096, -1, -200])
def test_a_file_that_was_cut_is_refused(tmp_path: Path, size: int) -> None:
    path = stored(tmp_path / "a", *made())
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)
    with pytest.raises(UnusableError):
        read(path)


@pytest.mark.parametrize(
    "layout",
    [
        {"fingerprint": "other"},
        {"precision": "float32"},
        {"isa": "avx512_bf16"},
        {"page_bytes": 48},
        {"state_bytes": 100},
        {"stamp_rows": 3},
    ],
)
def test_another_model_is_foreign(tmp_path: Path, layout: dict[str, Any]) -> None:
    path = stored(tmp_path / "a", *made())
    with pytest.raises(UnusableError) as caught:
        read(path, dataclasses.replace(LAYOUT, **layout))
    assert caught.value.reason == "foreign"


@pytest.mark.parametrize(
    "changed",
    [
        {"position": 52},
        {"position": 54},
        {"position": 0, "base": 0},
        {"position": -5},
        {"position": 2**62},
        {"base": 4},
        {"base": -1},
        {"base_digest": "00" * 16},
        {"base_digest": "zz"},
        {"digest": "ab" * 16},
        {"digest": "../../../../etc/passwd0000000000"},
        {"parent": ""},
        {"parent": "x"},
    ],
)
def test_a_description_that_contradicts_itself_is_refused_though_its_checksum_is_right(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    record, parts = made()
    lies = Record(msgspec.structs.replace(record.description, **changed), record.tokens, record.sums, record.stamps)
    text = msgspec.json.encode(lies.description)
    body = text + record.tokens + record.sums.tobytes() + record.stamps.tobytes()
    raw = struct.pack("<8sII16s", b"STATMARK", 1, len(text), xxhash.xxh3_128_digest(body)) + body
    path = tmp_path / "a"
    path.write_bytes(raw.ljust(-(-len(raw) // 4096) * 4096, b"\0") + b"".join(parts))
    with pytest.raises(UnusableError):
        read(path)


def test_a_part_of_another_checkpoint_fails_with_its_own_checksum() -> None:
    one, parts = made(53)
    two, _ = made(37)
    sums = np.array([checksum(two.digest, part) for part in parts], dtype=np.uint64)
    spliced = Record(one.description, one.tokens, sums, one.stamps)
    with pytest.raises(UnusableError):
        spliced.check_part(0, parts[0])
