"""What of a request goes into a trace: salted digests of its 64-token blocks, and which session it goes on. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

BLOCK = 64
BYTES_PER_TOKEN = 4  # of a text, where no tokenizer is given
_ENDS = 2  # blocks at the end of a prompt that the next one of its conversation may replace


def units_of(body: dict[str, Any], encode: Callable[[str], Sequence[int]] | None) -> list[bytes]:
    """A prompt's tokens as bytes each: ids as they are; text by `encode`, or cut into pieces of four bytes.

    Messages count as their JSON, one after the other: a conversation that goes on begins like the one before.
    ValueError for a body that has neither.
    """
    messages, prompt = body.get("messages"), body.get("prompt")
    if isinstance(messages, list) and messages:
        head = json.dumps(body["tools"], sort_keys=True) if body.get("tools") else ""
        text = head + "".join(json.dumps(m, sort_keys=True, ensure_ascii=False) for m in messages)
    elif isinstance(prompt, str) and prompt:
        text = prompt
    elif isinstance(prompt, list) and prompt and all(type(i) is int and 0 <= i < 1 << 32 for i in prompt):
        return [i.to_bytes(4, "little") for i in prompt]
    else:
        raise ValueError("a request without one prompt")
    if encode is not None:
        return [int(i).to_bytes(4, "little") for i in encode(text)]
    raw = text.encode("utf-8", errors="replace")
    return [raw[i : i + BYTES_PER_TOKEN] for i in range(0, len(raw), BYTES_PER_TOKEN)]


def digests_of(units: Sequence[bytes], salt: bytes) -> list[str]:
    """One for each whole block; each depends on everything before it, so equal ones mean equal beginnings."""
    digest, found = hashlib.blake2b(b"", key=salt, digest_size=12).digest(), []
    for start in range(0, len(units) - len(units) % BLOCK, BLOCK):
        digest = hashlib.blake2b(digest + b"".join(units[start : start + BLOCK]), key=salt, digest_size=12).digest()
        found.append(digest.hex())
    return found


@dataclass
class _Open:
    name: str
    blocks: int
    ended: float


class Sessions:
    """Tells which conversation a prompt goes on: a name that the client gives, else the prompt that it extends.

    A prompt extends the last one of a conversation whose answer had ended if it has all its blocks but the last two.
    """

    def __init__(self) -> None:
        self._by_block: dict[str, _Open] = {}
        self._named: dict[str, _Open] = {}
        self._count = 0

    def add(self, blocks: Sequence[str], began: float, ended: float, name: str | None = None) -> tuple[str, float]:
        """(the conversation, seconds between its last answer and this request); give answered requests as they end."""
        found = self._named.get(name) if name is not None else self._extended(blocks, began)
        think = 0.0 if found is None else max(0.0, began - found.ended)
        if found is None:
            self._count += 1
            found = _Open(f"s{self._count}", 0, ended)
            if name is not None:
                self._named[name] = found
        found.blocks, found.ended = len(blocks), ended
        for digest in blocks:
            self._by_block[digest] = found
        return found.name, think

    def _extended(self, blocks: Sequence[str], began: float) -> _Open | None:
        for depth in range(len(blocks), 0, -1):
            found = self._by_block.get(blocks[depth - 1])
            if found is not None:
                fits = depth >= max(1, found.blocks - _ENDS) and found.ended <= began
                return found if fits else None
        return None


def output_tokens(tail: bytes, events: int) -> int:
    """Generated tokens from an answer's last bytes: its usage where it tells, else its number of events."""
    for line in reversed(tail.splitlines()):
        raw = line.removeprefix(b"data:").strip()
        if not raw.startswith(b"{"):
            continue
        try:
            usage = json.loads(raw).get("usage")
        except (ValueError, AttributeError):
            continue
        if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
            return int(usage["completion_tokens"])
    return events
