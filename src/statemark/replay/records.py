"""One replayed request as plain data, and the file that keeps them: JSON lines, so that a broken run is not lost."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from statemark.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Record:
    """Seconds throughout. `at`: when it was sent after its round's beginning. `error`: a kind, "" where it went well.

    `arrivals`: seconds from sending to each token, all of an event at its time. `cached` is None where nobody says.
    `start`: which start of the server, where runs of several are put together.
    """

    target: str
    round: int
    session: str
    turn: int
    at: float
    prompt: int
    output: int = 0
    cached: int | None = None
    ideal: int = 0
    arrivals: list[float] = field(default_factory=list)
    seconds: float = 0.0
    finish: str = ""
    error: str = ""
    words: str = ""
    warm_up: bool = False
    start: int = 1

    @property
    def good(self) -> bool:
        return not self.error and bool(self.arrivals)

    @property
    def ttft(self) -> float:
        return self.arrivals[0]

    @property
    def key(self) -> tuple[str, int]:
        return self.session, self.turn


def write_line(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def record_line(record: Record) -> str:
    data = asdict(record)
    data["arrivals"] = [round(a, 6) for a in record.arrivals]
    return write_line({"record": data})


def read_records(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """(head, records) of a run; lines cut off in the middle are left out."""
    head: dict[str, Any] = {}
    records = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from None
    for line in text.splitlines():
        try:
            data = json.loads(line)
            if "head" in data:
                head = data["head"]
            else:
                records.append(Record(**data["record"]))
        except (ValueError, KeyError, TypeError):
            continue
    if not head:
        raise ConfigurationError(f"{path} is no run that `statemark replay --out` has written")
    return head, records


def finished(records: Iterable[Record]) -> set[tuple[str, int, str]]:
    """(target, round, session) of which every request went well: a resumed run leaves them out."""
    found = list(records)
    failed = {(r.target, r.round, r.session) for r in found if r.error}
    return {(r.target, r.round, r.session) for r in found if r.finish == "session done"} - failed
