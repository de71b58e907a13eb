"""What a finding is. Knows no rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Level(Enum):
    """How bad: wrong answers or no answer; lost time or reuse; good to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        return {"error": 3, "warning": 2, "info": 1}[self.value]


@dataclass(frozen=True)
class Finding:
    """`remedy` names the flag to change; `numbers` are what the sentence rests on."""

    code: str
    level: Level
    sentence: str
    remedy: str
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return {
            "code": self.code,
            "level": self.level.value,
            "sentence": self.sentence,
            "remedy": self.remedy,
            "numbers": dict(self.numbers),
        }
