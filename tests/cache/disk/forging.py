"""Files as somebody would make them who knows the format: every checksum right, the content wrong."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from statemark.cache.disk.record import Description, Layout, Record, checksum, read_record


def load(path: Path) -> tuple[Record, list[bytes]]:
    """A file's record and its parts, whatever model it is of."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[12:16], "little")
    said = msgspec.json.decode(raw[32 : 32 + length], type=Description)
    layout = Layout(
        fingerprint=said.fingerprint,
        precision=said.precision,
        isa=said.isa,
        page_bytes=said.page_bytes,
        state_bytes=said.state_bytes,
        stamp_rows=said.stamp_rows,
    )
    fd = os.open(path, os.O_RDONLY)
    record = read_record(fd, layout)
    os.close(fd)
    sizes = [said.page_bytes] * record.pages + [said.state_bytes]
    return record, [raw[record.offset(i) : record.offset(i) + size] for i, size in enumerate(sizes)]


def forge(path: Path, record: Record, parts: list[bytes]) -> None:
    """Write it with checksums that fit."""
    sums = np.array([checksum(record.digest, part) for part in parts], dtype=np.uint64)
    path.write_bytes(replace(record, sums=sums).header() + b"".join(parts))


def swap_states(folder: Path, *, stamps: bool = True) -> int:
    """Give each checkpoint the state (with its stamps, or without) of the next; returns how many there are."""
    paths = sorted(folder.glob("*.mark"))
    loaded = [load(path) for path in paths]
    for i, path in enumerate(paths):
        record, parts = loaded[i]
        other, others = loaded[(i + 1) % len(loaded)]
        forge(path, replace(record, stamps=other.stamps if stamps else record.stamps), [*parts[:-1], others[-1]])
    return len(paths)
