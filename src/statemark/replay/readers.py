"""Traces of several kinds as sessions. Knows formats; knows no server.

- a folder of coding-agent sessions (`*.json.gz`), read as `simulate` reads them;
- Mooncake: JSON lines with timestamp (ms), input_length, output_length and a hash id for each 512 tokens;
- what `record` writes: JSON lines with salted digests of 64-token blocks;
- logs of OpenAI requests: JSON lines with a body's `prompt` or `messages`, and a timestamp and a session if known.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from statemark.errors import ConfigurationError
from statemark.replay.workload import Abstract, SessionPlan, Turn
from statemark.simulate.formats import MOONCAKE_BLOCK, mooncake_line
from statemark.simulate.traces import TraceRequest, read_sessions
from statemark.words import counted

RECORD = "statemark-trace-1"
_FRESH = 1 << 40  # abstract tokens from here on occur once
_CHARACTERS = 4  # of a logged text for each abstract token, where no tokenizer is at hand


def read_trace(path: Path, most: int | None = None) -> tuple[list[SessionPlan], list[str]]:
    """Sessions in order of time, and notes on lines that were left out. ConfigurationError if nothing is left.

    `most`: of a folder only so many are read, since long ones take seconds each.
    """
    if path.is_dir():
        return [_coding(requests) for requests in read_sessions(path, most=most) if requests], []
    if not path.exists():
        raise ConfigurationError(f"there is no trace {path}", hint="name a file of JSON lines or a folder of *.json.gz")
    entries, broken = [], []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            entries.append((_kind(entry), entry))
        except (ValueError, KeyError, TypeError) as error:
            broken.append((number, error))
    kinds = {kind for kind, _ in entries}
    if len(kinds) != 1:
        raise ConfigurationError(
            f"{path} mixes lines of {len(kinds)} kinds" if kinds else f"{path} holds no request that can be replayed",
            hint="it takes Mooncake's lines, OpenAI request bodies, or what `statemark record` writes",
        )
    sessions, bad = _READERS[kinds.pop()]([entry for _, entry in entries])
    notes = [f"line {n} of {path.name} was left out: {error}" for n, error in broken[:3]]
    if len(broken) > 3:
        notes.append(f"{len(broken) - 3} more lines of {path.name} were left out")
    notes += [f"{path.name}: {counted(bad, 'request')} left out for fields that make no sense"] if bad else []
    if not sessions:
        raise ConfigurationError(f"{path} holds no request that can be replayed")
    return sorted(sessions, key=lambda s: s.at), notes


def _lines(path: Path) -> Iterator[str]:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError) as error:
            raise ConfigurationError(f"{path} is no gzip file: {error}") from None
    yield from raw.decode("utf-8", errors="replace").splitlines()


def _kind(entry: Any) -> str:
    if not isinstance(entry, dict):
        raise TypeError("no JSON object")
    if entry.get("format") == RECORD:
        return "record"
    if "hash_ids" in entry and "input_length" in entry:
        return "mooncake"
    body = entry.get("body", entry)
    if isinstance(body, dict) and ("messages" in body or "prompt" in body):
        return "openai"
    raise ValueError("neither a request nor a line of a trace")


# --- coding-agent sessions ----------------------------------------------------------------------------------------


def _coding(requests: list[TraceRequest]) -> SessionPlan:
    turns = []
    for i, request in enumerate(requests):
        wait = request.at - requests[i - 1].at if i else 0.0
        turns.append(Turn(request.tokens.astype(np.int64), request.output, wait))
    return SessionPlan(requests[0].session, tuple(turns), 0.0)


# --- lines --------------------------------------------------------------------------------------------------------

Read = tuple[list[SessionPlan], int]


def _mooncake(entries: list[dict[str, Any]]) -> Read:
    sessions, bad = [], 0
    for number, entry in enumerate(entries):
        try:
            line = mooncake_line(entry)
            turn = Turn(_spelled(line.blocks, line.prompt, MOONCAKE_BLOCK, number), line.output)
            sessions.append(SessionPlan(f"request {number}", (turn,), line.at))
        except (KeyError, TypeError, ValueError):
            bad += 1
    return sessions, bad


def _spelled(blocks: list[int], length: int, block: int, number: int) -> Abstract:
    """Tokens of whole blocks by their ids; what a trace doesn't name is shared with nobody."""
    if length < 1 or len(blocks) > -(-length // block):
        raise ValueError(f"{len(blocks)} blocks for {length} tokens")
    named = (np.array(blocks, dtype=np.int64)[:, None] * block + np.arange(block)).reshape(-1)[:length]
    rest = _FRESH + (number << 24) + np.arange(length - len(named), dtype=np.int64)
    return np.concatenate([named, rest])


def _recorded(entries: list[dict[str, Any]]) -> Read:
    numbers: dict[str, int] = {}

    def turn_of(entry: dict[str, Any], serial: int) -> Turn:
        blocks = [numbers.setdefault(str(digest), len(numbers)) for digest in entry["blocks"]]
        # What follows the last whole block has no digest: nobody can tell whether a later prompt repeats it.
        tokens = _spelled(blocks, int(entry["tokens"]), int(entry["block"]), serial)
        return Turn(tokens, max(1, int(entry["output"])), float(entry.get("think", 0.0)), after_end=True)

    return _grouped(entries, turn_of, "session", "at")


def _openai(entries: list[dict[str, Any]]) -> Read:
    def turn_of(entry: dict[str, Any], serial: int) -> Turn:
        body = entry.get("body", entry)
        output = int(body.get("max_tokens") or body.get("max_completion_tokens") or 256)
        messages = body.get("messages")
        if messages is not None:
            if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
                raise ValueError("messages")
            text = "\x00".join(json.dumps(m, sort_keys=True) for m in messages)
            return Turn(_text_tokens(text), output, messages=tuple(messages))
        prompt = body["prompt"]
        if isinstance(prompt, list) and prompt and all(isinstance(i, int) for i in prompt):
            return Turn(np.array(prompt, dtype=np.int64), output)
        if not isinstance(prompt, str) or not prompt:
            raise ValueError("prompt")
        return Turn(_text_tokens(prompt), output)

    return _grouped(entries, turn_of, "session", "timestamp")


def _text_tokens(text: str) -> Abstract:
    """A text's pieces as abstract tokens: equal beginnings stay equal, nothing else of the text is kept."""
    pieces = (text[i : i + _CHARACTERS] for i in range(0, len(text), _CHARACTERS))
    digests = [int.from_bytes(hashlib.blake2b(p.encode(), digest_size=4).digest(), "big") for p in pieces]
    return np.array(digests, dtype=np.int64)


def _grouped(
    entries: list[dict[str, Any]], turn_of: Callable[[dict[str, Any], int], Turn], session: str, time: str
) -> Read:
    found: dict[str, list[tuple[float, Turn]]] = {}
    bad = 0
    for serial, entry in enumerate(entries):
        try:
            name = str(entry.get(session, f"request {serial}"))
            found.setdefault(name, []).append((float(entry.get(time, 0.0)), turn_of(entry, serial)))
        except (KeyError, TypeError, ValueError):
            bad += 1
    plans = []
    for name, turns in found.items():
        turns.sort(key=lambda pair: pair[0])
        last = turns[0][0]
        made = []
        for at, turn in turns:
            wait = turn.wait if turn.after_end else max(0.0, at - last)
            made.append(Turn(turn.tokens, turn.output, wait, turn.after_end, turn.messages))
            last = at
        plans.append(SessionPlan(name, tuple(made), turns[0][0]))
    first = min((p.at for p in plans), default=0.0)
    return [SessionPlan(p.name, p.turns, p.at - first) for p in plans], bad


_READERS: dict[str, Callable[[list[dict[str, Any]]], Read]] = {
    "mooncake": _mooncake,
    "record": _recorded,
    "openai": _openai,
}
