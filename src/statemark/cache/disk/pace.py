"""Whether reading a checkpoint is faster than computing its tokens again, from what this process has measured."""

from __future__ import annotations

_KEEP = 0.8  # weight of what was measured before, at each new measurement
_FADE = 0.98  # each refusal makes the next one less sure: a rate that isn't measured again is no reason for ever
_PROMPT = 16  # tokens beyond one for each sequence
_OPEN = 5e-4  # seconds to open and check a file


class _Rate:
    """Amount a second; large measurements weigh more than small ones."""

    def __init__(self) -> None:
        self._amount = 0.0
        self._seconds = 0.0

    def add(self, amount: float, seconds: float) -> None:
        self._amount = _KEEP * self._amount + amount
        self._seconds = _KEEP * self._seconds + max(seconds, 1e-9)

    @property
    def value(self) -> float | None:
        return self._amount / self._seconds if self._amount else None


class Pace:
    """`read_rate`: bytes a second until something was read; measured at start by whoever makes this."""

    def __init__(self, read_rate: float) -> None:
        self._first = read_rate
        self._read = _Rate()
        self._compute = _Rate()
        self._doubt = 1.0

    @property
    def read_rate(self) -> float:
        """Bytes a second."""
        return self._read.value or self._first

    @property
    def compute_rate(self) -> float | None:
        """Tokens of prompts a second; None before any was computed."""
        return self._compute.value

    def step(self, tokens: int, sequences: int, seconds: float) -> None:
        """A step computed that many tokens; one that decodes says nothing about prompts."""
        if tokens >= sequences + _PROMPT:
            self._compute.add(tokens, seconds)

    def read(self, count: int, seconds: float) -> None:
        """`count` bytes were read and checked."""
        self._read.add(count, seconds)
        self._doubt = 1.0

    def worth(self, count: int, tokens: int, rate: float | None = None) -> bool:
        """Whether reading `count` bytes beats computing `tokens`. `rate` stands in until this process has computed."""
        compute = self.compute_rate or rate
        return not compute or self._seconds(count) < tokens / compute

    def refused(self) -> None:
        self._doubt *= _FADE

    def _seconds(self, count: int) -> float:
        return (_OPEN + count / self.read_rate) * self._doubt


class Always(Pace):
    """Reads whatever there is."""

    def __init__(self) -> None:
        super().__init__(1e9)

    def worth(self, count: int, tokens: int, rate: float | None = None) -> bool:
        return True
