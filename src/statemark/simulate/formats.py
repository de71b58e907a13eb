"""Reads traces: Mooncake's JSON lines, coding-agent sessions, and Statemark's own JSON lines.

A line that can't be read is an error that names file and line; with `skip_bad` it is counted and passed over.
"""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statemark.errors import ConfigurationError
from statemark.simulate.traces import session_requests
from statemark.simulate.workload import MAX_TOKENS, Names, Request

MOONCAKE_BLOCK = 512
_OWN_FIELDS = {"at", "parts", "output", "answer", "session", "turns"}


@dataclass
class Trace:
    """`bad` are the lines that were passed over, as `file:line: reason`."""

    name: str
    requests: list[Request] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    @property
    def prompt_tokens(self) -> int:
        return sum(r.prompt for r in self.requests)


def read_trace(path: Path, *, skip_bad: bool = False, limit: int | None = None) -> Trace:
    """A file of JSON lines (.jsonl, .jsonl.gz), one session (.json, .json.gz), or a folder of sessions."""
    trace = Trace(path.name)
    names = Names()
    try:
        if path.is_dir():
            files = sorted([*path.glob("*.json"), *path.glob("*.json.gz")])
            if not files:
                raise ConfigurationError(f"there are no sessions in {path}", hint="give a folder of *.json.gz")
            for file in files:
                _read_session(trace, names, file, skip_bad)
            trace.requests.sort(key=lambda r: r.at)
        elif path.name.endswith((".json", ".json.gz")):
            _read_session(trace, names, path, skip_bad)
        else:
            _read_lines(trace, names, path, skip_bad, limit)
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"{path}: {error}", hint="give a trace file or a folder of sessions") from None
    if limit is not None:
        del trace.requests[limit:]
    if not trace.requests:
        raise ConfigurationError(f"{path} has no requests")
    if any(a.at > b.at for a, b in zip(trace.requests, trace.requests[1:], strict=False)):
        trace.requests.sort(key=lambda r: r.at)
    return trace


def _bytes_of(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        yield from lines


def _read_lines(trace: Trace, names: Names, path: Path, skip_bad: bool, limit: int | None) -> None:
    reader: Callable[[Names, int, dict[str, Any], dict[str, int]], Request] | None = None
    answers: dict[str, int] = {}
    for number, line in enumerate(_bytes_of(path), start=1):
        if limit is not None and len(trace.requests) >= limit:
            return
        if not line.strip():
            continue
        try:
            values = json.loads(line)
            if not isinstance(values, dict):
                raise ValueError("not a JSON object")
            if reader is None:
                reader = _mooncake if "hash_ids" in values else _own
            trace.requests.append(reader(names, len(trace.requests), values, answers))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            reason = f"{path.name}:{number}: {_reason(error)}"
            if not skip_bad:
                raise ConfigurationError(reason, hint="repair the line, or pass it over with --skip-bad") from None
            trace.bad.append(reason)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at column {error.colno}"
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error)


def _count(values: dict[str, Any], key: str, low: int) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_TOKENS:
        raise ValueError(f"{key} must be a whole number from {low} to {MAX_TOKENS:,}, is {value!r}")
    return value


def _time(values: dict[str, Any], key: str) -> float:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"{key} must be a number of at least 0, is {value!r}")
    return float(value)


@dataclass(frozen=True)
class MooncakeLine:
    """`at` in seconds; `blocks`: an id for each 512 tokens, the last one for what is left."""

    at: float
    prompt: int
    output: int
    blocks: list[int]


def mooncake_line(values: dict[str, Any]) -> MooncakeLine:
    """A line of a Mooncake trace. KeyError or ValueError, with the reason, where it is none."""
    prompt = _count(values, "input_length", 1)
    ids = values["hash_ids"]
    if not isinstance(ids, list) or len(ids) != -(-prompt // MOONCAKE_BLOCK):
        raise ValueError(f"input_length {prompt} takes {-(-prompt // MOONCAKE_BLOCK)} hash_ids of {MOONCAKE_BLOCK}")
    if any(isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < 1 << 36 for i in ids):
        raise ValueError("hash_ids must be whole numbers of at least 0")
    output = max(1, _count(values, "output_length", 0))
    return MooncakeLine(_time(values, "timestamp") / 1000, prompt, output, ids)


def _mooncake(names: Names, number: int, values: dict[str, Any], answers: dict[str, int]) -> Request:
    """A hash names all tokens up to the end of its block of 512, so it is a prefix's name as it stands."""
    line = mooncake_line(values)
    nodes = array("q", [i + 1 for i in line.blocks])
    answer = (1 << 36) + number + 1
    return Request(number, line.at, nodes, line.prompt, line.output, answer, grain=MOONCAKE_BLOCK)


def _own(names: Names, number: int, values: dict[str, Any], answers: dict[str, int]) -> Request:
    """`parts`: named spans; equal names after equal text are equal text. `answer` names what this request says."""
    unknown = sorted(set(values) - _OWN_FIELDS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}, known are {', '.join(sorted(_OWN_FIELDS))}")
    parts = values["parts"]
    if not isinstance(parts, list) or not parts:
        raise ValueError("parts must be a list of [name, tokens]")
    spans: list[tuple[str, int]] = []
    for part in parts:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
            raise ValueError(f"parts must be a list of [name, tokens], has {part!r}")
        spans.append((part[0], _count({"tokens": part[1]}, "tokens", 1)))
    nodes, ends = names.spans(spans)
    if ends[-1] > MAX_TOKENS:
        raise ValueError(f"the prompt has {ends[-1]:,} tokens, at most {MAX_TOKENS:,} are possible")
    name = values.get("answer")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"answer must be a name, is {name!r}")
    answer = names.fresh() if name is None else names.child(nodes[-1], ends[-1], name)
    turns = values.get("turns", [])
    if not isinstance(turns, list) or any(isinstance(t, bool) or not isinstance(t, int) for t in turns):
        raise ValueError("turns must be a list of token counts")
    return Request(
        number,
        _time(values, "at"),
        nodes,
        ends[-1],
        _count(values, "output", 1),
        answer,
        ends=ends,
        session=str(values.get("session", "")),
        turns=tuple(sorted({t for t in turns if 0 < t < ends[-1]})),
    )


def _read_session(trace: Trace, names: Names, path: Path, skip_bad: bool) -> None:
    try:
        data = json.loads(b"".join(_bytes_of(path)))
        found = sorted(((at, entry) for _, at, entry, _ in session_requests(data)), key=lambda e: e[0])
        block = _count(data, "block_size", 1)
        for at, entry in found:
            prompt = _count(entry, "in", 1)
            ids = entry["hash_ids"][: prompt // block]
            parts: list[tuple[Any, int]] = [((data["id"], i), block) for i in ids]
            nodes, ends = names.spans(parts)
            if not ends or ends[-1] < prompt:
                nodes.append(names.fresh())
                ends.append(prompt)
            system = min(prompt - 1, data.get("tool_tokens", 0) + data.get("system_tokens", 0)) // block * block
            output = max(1, _count(entry, "out", 0))
            trace.requests.append(
                Request(
                    len(trace.requests), at, array("q", nodes), prompt, output, names.fresh(),
                    ends=array("q", ends), session=str(data["id"]), turns=(system,) if system else (),
                )
            )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{path.name}: {_reason(error)}"
        if not skip_bad:
            raise ConfigurationError(reason, hint="remove the file, or pass it over with --skip-bad") from None
        trace.bad.append(reason)
