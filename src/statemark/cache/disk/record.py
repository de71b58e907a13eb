"""One checkpoint as bytes: what a file says about itself, and how each part of it is checked. Knows no directory.

    0      magic, format version, length of the description, xxh3-128 of all that follows up to the payload
    32     description (JSON: model, precision, layout, digests, position, kind)
           token ids int32, checksums uint64 (each page, then the state), stamps uint64 [rows, 2]
    4096k  payload: full pages from `base` on, the page that the position lies in (if inside one), the state

A checkpoint holds the pages that its parent (another checkpoint, named by digest) doesn't have; without a parent, all.
Each part's checksum is seeded by the checkpoint's digest: a part of another file fails even with its checksum.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from statemark.cache.digest import PAGE_TOKENS, chain
from statemark.errors import StatemarkError

FORMAT = 1
_MAGIC = b"STATMARK"
_HEAD = struct.Struct("<8sII16s")
_ALIGN = 4096
_LONGEST_TEXT = 1 << 16
_LARGEST_HEADER = 1 << 28

U64 = npt.NDArray[np.uint64]
Buffer = memoryview | bytes


class UnusableError(StatemarkError):
    """A file that can't be used; `reason` is a word for the counters. Always a miss, never more."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What must be equal for a state to be of use: the model with its arithmetic, and sizes in bytes.

    `fingerprint` names weights, precision, instruction set and code; the next two are for people who look at a file.
    """

    fingerprint: str
    precision: str
    isa: str
    page_bytes: int
    state_bytes: int
    stamp_rows: int


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests are hexadecimal. `base`: full pages of the prefix that the parent's files hold (`base_digest` ends them).

    `rate`: tokens a second at which the writer computed prompts.
    """

    fingerprint: str
    precision: str
    isa: str
    page_tokens: int
    page_bytes: int
    state_bytes: int
    stamp_rows: int
    digest: str
    base: int
    base_digest: str
    parent: str
    position: int
    kind: str
    prompt_tokens: int
    rate: float


@dataclass(frozen=True)
class Record:
    """A description with what goes with it. `tokens`: ids from `base` pages on, int32 little endian."""

    description: Description
    tokens: bytes
    sums: U64
    stamps: U64

    @property
    def digest(self) -> bytes:
        return bytes.fromhex(self.description.digest)

    @property
    def parent(self) -> bytes | None:
        return bytes.fromhex(self.description.parent) or None

    @property
    def base_digest(self) -> bytes:
        return bytes.fromhex(self.description.base_digest)

    @property
    def full(self) -> int:
        """Full pages of the prefix."""
        return self.description.position // PAGE_TOKENS

    @property
    def tail(self) -> bytes:
        """Token ids after the last full page."""
        return self.tokens[4 * PAGE_TOKENS * (self.full - self.description.base) :]

    @property
    def pages(self) -> int:
        """Pages in the payload."""
        return self.full - self.description.base + bool(self.tail)

    def node(self) -> bytes:
        """Digest of the full pages, from the token ids."""
        digest, size = self.base_digest, 4 * PAGE_TOKENS
        for start in range(0, size * (self.full - self.description.base), size):
            digest = chain(digest, self.tokens[start : start + size])
        return digest

    @property
    def payload_start(self) -> int:
        size = _HEAD.size + len(_text(self.description)) + len(self.tokens) + self.sums.nbytes + self.stamps.nbytes
        return -(-size // _ALIGN) * _ALIGN

    @property
    def file_bytes(self) -> int:
        said = self.description
        return self.payload_start + self.pages * said.page_bytes + said.state_bytes

    def offset(self, part: int) -> int:
        """Where page `part` of the payload begins; part `pages` is the state."""
        return self.payload_start + part * self.description.page_bytes

    def header(self) -> bytes:
        """Everything before the payload."""
        body = _text(self.description) + self.tokens + self.sums.tobytes() + self.stamps.tobytes()
        raw = _HEAD.pack(_MAGIC, FORMAT, len(_text(self.description)), xxhash.xxh3_128_digest(body)) + body
        return raw.ljust(self.payload_start, b"\0")

    def check_part(self, part: int, content: Buffer) -> None:
        if checksum(self.digest, content) != int(self.sums[part]):
            raise UnusableError("damaged", f"part {part} of checkpoint {self.description.digest} is damaged")


def checksum(digest: bytes, content: Buffer) -> int:
    return xxhash.xxh3_64_intdigest(content, seed=int.from_bytes(digest[:8], "little"))


def _text(description: Description) -> bytes:
    return msgspec.json.encode(description)


def read_record(fd: int, layout: Layout) -> Record:
    """The header of an open file, checked in itself. Raises UnusableError; OSError as it comes."""
    size = os.fstat(fd).st_size
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or head[:8] != _MAGIC:
        raise UnusableError("damaged", "not a checkpoint")
    _, version, length, said = _HEAD.unpack(head)
    if version != FORMAT:
        raise UnusableError("foreign", f"format {version}, this is {FORMAT}")
    if length > _LONGEST_TEXT:
        raise UnusableError("damaged", f"a description of {length} bytes")
    text = os.pread(fd, length, _HEAD.size)
    try:
        description = msgspec.json.decode(text, type=Description)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnusableError("damaged", f"description: {error}") from None
    if _text(description) != text:
        raise UnusableError("damaged", "the description is not as it was written")
    _check_description(description, layout)
    tokens = 4 * (description.position - description.base * PAGE_TOKENS)
    parts = -(-(tokens // 4) // PAGE_TOKENS) + 1
    stamps = 16 * description.stamp_rows
    rest = tokens + 8 * parts + stamps
    if rest > _LARGEST_HEADER:
        raise UnusableError("damaged", f"a header of {rest} bytes")
    body = os.pread(fd, rest, _HEAD.size + length)
    if len(body) != rest or xxhash.xxh3_128_digest(text + body) != said:
        raise UnusableError("damaged", "the header is damaged")
    sums = np.frombuffer(body, np.uint64, parts, tokens)
    record = Record(
        description, body[:tokens], sums, np.frombuffer(body, np.uint64, -1, tokens + 8 * parts).reshape(-1, 2)
    )
    if size != record.file_bytes:
        raise UnusableError("truncated", f"{size} bytes instead of {record.file_bytes}")
    if record.digest != (chain(record.node(), record.tail) if record.tail else record.node()):
        raise UnusableError("damaged", "the token ids are of another prefix")
    return record


def _check_description(said: Description, layout: Layout) -> None:
    mine = (layout.fingerprint, layout.precision, layout.isa, PAGE_TOKENS, layout.page_bytes, layout.state_bytes)
    theirs = (said.fingerprint, said.precision, said.isa, said.page_tokens, said.page_bytes, said.state_bytes)
    if (*theirs, said.stamp_rows) != (*mine, layout.stamp_rows):
        raise UnusableError("foreign", "written by another model, precision, instruction set or version")
    digests = (said.digest, said.base_digest, *([said.parent] if said.parent else []))
    if not all(re.fullmatch(r"[0-9a-f]{32}", digest) for digest in digests):
        raise UnusableError("damaged", "not a digest")
    if not 0 <= said.base <= said.position // PAGE_TOKENS or said.position < 1 or bool(said.base) > bool(said.parent):
        raise UnusableError("damaged", f"position {said.position} after {said.base} pages")
