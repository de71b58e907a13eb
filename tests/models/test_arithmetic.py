"""States on disk are only taken up by the code and the processor that made them."""

from __future__ import annotations

from pathlib import Path

import pytest

from statemark.models import arithmetic, loader
from statemark.models.arithmetic import arithmetic_digest, digest_of, machine
from tests.models.test_loader import spec_of, write


def test_it_sees_code_and_machine(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"ab")
    two.write_bytes(b"c")
    found = digest_of([one, two], ["processor"])
    assert digest_of([one, two], ["processor"]) == found
    assert digest_of([one, two], ["another"]) != found
    one.write_bytes(b"a")
    two.write_bytes(b"bc")
    assert digest_of([one, two], ["processor"]) != found


def test_it_reads_the_kernels_and_the_models() -> None:
    names = {path.name for path in arithmetic.arithmetic_files()}
    assert {"layers.py", "qwen3_5.py"} <= names
    assert any(name.startswith("_core") for name in names)


def test_processors_differ(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A\nflags\t\t: fpu avx2\ncpu MHz\t: 2000\n\nprocessor\t: 1\n")
    first = machine(info)
    assert any("avx2" in line for line in first)
    info.write_text(info.read_text().replace("2000", "3000"))
    assert machine(info) == first, "the clock is no fact about results"
    info.write_text(info.read_text().replace("avx2", "avx"))
    assert machine(info) != first
    assert machine(tmp_path / "missing")


def test_it_is_part_of_the_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model")
    before = spec_of(folder).fingerprint
    assert spec_of(folder).fingerprint == before
    monkeypatch.setattr(loader, "arithmetic_digest", lambda: "other code")
    assert spec_of(folder).fingerprint != before
    assert arithmetic_digest() == arithmetic_digest()
