"""Reads coding-agent sessions (kv-cache-tester's format) and gives their prompts as token ids.

A trace names 64-token blocks, not tokens. What lies between the last whole block of a prompt and its end is not in the
trace: the next request of the session that has all of this prompt's blocks and more is taken to begin with this prompt
to the token (`tails="appended"`), as chats do; if there is none, and always with `tails="unknown"`, it is shared with
nobody.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from statemark.cache.digest import Tokens
from statemark.errors import ConfigurationError

BLOCK = 64
TAILS = ("appended", "unknown")
_Entry = tuple[str, float, dict[str, Any], tuple[int, ...]]  # agent, time, as recorded, system end
_UNIQUE = 1 << 30  # token ids from here on occur once


@dataclass(frozen=True)
class TraceRequest:
    """One prompt. `agent`: whose conversation it belongs to within the session; `turns`: known ends of messages."""

    session: str
    agent: str
    at: float
    blocks: Tokens
    tokens: Tokens
    output: int
    turns: tuple[int, ...]


def read_sessions(folder: Path, *, tails: str = "appended", most: int | None = None) -> list[list[TraceRequest]]:
    """The sessions of a folder of `*.json.gz`, or the first `most` of them, each with its requests in order of time."""
    files = sorted(folder.glob("*.json.gz")) if folder.is_dir() else []
    if not files:
        raise ConfigurationError(f"there are no traces in {folder}", hint="give a folder of *.json.gz sessions")
    return [_session(file, tails) for file in files[:most]]


def _session(file: Path, tails: str) -> list[TraceRequest]:
    try:
        data = json.loads(gzip.decompress(file.read_bytes()))
        if data["block_size"] != BLOCK:
            raise ConfigurationError(f"{file.name}: blocks of {data['block_size']} tokens, only {BLOCK} are known")
        walked = ((agent, at, entry, _system(owner)) for agent, at, entry, owner in session_requests(data))
        found = sorted(walked, key=lambda entry: entry[1])
        return _spell(data["id"], found, appended=tails == "appended")
    except ConfigurationError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        why = f"there is no {error}" if isinstance(error, KeyError) else str(error) or "it ends too early"
        raise ConfigurationError(
            f"{file.name} is no session: {why}", hint="sessions are gzipped JSON with id, block_size and requests"
        ) from None


def _spell(session: str, found: list[_Entry], *, appended: bool) -> list[TraceRequest]:
    """Token ids for every prompt; last one first, since a prompt's tail is read from a later one."""
    onward: dict[int, int] = {}  # prefix -> the block that comes next in the earliest later prompt
    requests: list[TraceRequest] = []
    unique = _UNIQUE
    for agent, at, entry, system in reversed(found):
        blocks = np.array(entry["hash_ids"], dtype=np.int32)
        rest = entry["in"] - BLOCK * len(blocks)
        tail = np.arange(rest, dtype=np.int32) + np.int32(unique)
        unique += rest
        prefixes = prefix_hashes(blocks).tolist()
        if appended and prefixes[-1] in onward:
            tail = _spelled(np.array([onward[prefixes[-1]]], dtype=np.int32))[:rest]
        onward.update(zip(prefixes, blocks[1:].tolist(), strict=False))
        tokens = np.concatenate([_spelled(blocks), tail])
        # Known message ends: tools and system (to the grain of the trace), and the generation header's beginning.
        turns = tuple(sorted({*system, len(tokens) - 4}))
        requests.append(TraceRequest(session, agent, at, blocks, tokens, max(1, entry["out"]), turns))
    return requests[::-1]


def session_requests(
    data: dict[str, Any], agent: str = "", begin: float = 0.0
) -> Iterator[tuple[str, float, dict[str, Any], dict[str, Any]]]:
    """(agent, time, request, whose requests it is among) of a session and of the agents that it calls, as recorded."""
    for entry in data["requests"]:
        at = begin + entry["t"]
        if entry.get("hash_ids"):
            yield agent, at, entry, data
        if entry.get("requests"):
            yield from session_requests(entry, f"{agent}/{entry.get('agent_id', at)}", at)


def _system(data: dict[str, Any]) -> tuple[int, ...]:
    end = (data.get("tool_tokens", 0) + data.get("system_tokens", 0)) // BLOCK * BLOCK
    return (end,) if end else ()


def _spelled(blocks: Tokens) -> Tokens:
    """64 token ids for each block id, no two blocks alike."""
    return (blocks[:, None] * BLOCK + np.arange(BLOCK, dtype=np.int32)).reshape(-1).astype(np.int32)


def prefix_hashes(blocks: Tokens) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """One number for every prefix of the block ids (wraps, which is wanted)."""
    factor = np.full(len(blocks), 0x9E3779B97F4A7C15, dtype=np.uint64)
    terms = (blocks.astype(np.uint64) + np.uint64(1)) * np.multiply.accumulate(factor)
    return np.cumsum(terms, dtype=np.uint64)


def unique_tokens(count: int, serial: int) -> Tokens:
    """Answers, which a trace doesn't show: shared with nobody."""
    return (np.arange(count, dtype=np.int64) * 7919 + 104729 * serial + 3).astype(np.int32) & np.int32(_UNIQUE - 1)
