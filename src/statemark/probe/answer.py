"""An answer as digests and numbers, and how far two of them are apart. Pure; no text is kept."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemark.client.reply import Token

TOP = 20  # likely tokens at each place
_ENDED = 50.0  # the size of having said nothing at all where something was said


@dataclass(frozen=True)
class Place:
    """One generated token: hashed labels, so that nothing of what was said can be read."""

    chosen: str
    top: dict[str, float]
    digest: str

    @property
    def argmax(self) -> str:
        return max(self.top, key=lambda label: (self.top[label], label))


@dataclass(frozen=True)
class Answer:
    """What a request said, as far as the probe keeps it."""

    places: tuple[Place, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over every place's likely tokens and their log-probabilities."""
        return hashlib.sha256("".join(p.digest for p in self.places).encode()).hexdigest()


def answer_of(tokens: Iterable[Token]) -> Answer:
    return Answer(tuple(_place(token) for token in tokens))


def _place(token: Token) -> Place:
    pairs = {_hidden(label): logprob for label, logprob in token.top} or {_hidden(token.label): token.logprob}
    h = hashlib.sha256(_hidden(token.label).encode())
    for label in sorted(pairs):
        h.update(label.encode() + struct.pack("<d", pairs[label]))
    return Place(_hidden(token.label), pairs, h.hexdigest())


def _hidden(label: str) -> str:
    return hashlib.sha256(label.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Shift:
    """How far an answer is from its reference.

    `size`: the largest difference of a log-probability, up to and with the first token that was chosen differently:
    behind it the two have different prefixes. `first`: where the numbers differ first; `argmax`: where the likeliest
    token does; `text`: where the chosen token does. All None where the answers are equal bit for bit.
    """

    size: float = 0.0
    first: int | None = None
    argmax: int | None = None
    text: int | None = None

    @property
    def exact(self) -> bool:
        return self.first is None

    def figures(self) -> dict[str, Any]:
        return {
            "size": self.size,
            "first_token": self.first,
            "argmax_changed_at": self.argmax,
            "text_changed_at": self.text,
        }


def compare(answer: Answer, reference: Answer) -> Shift:
    """The distance of two answers to one prompt; symmetric."""
    size, first, argmax, text = 0.0, None, None, None
    for i, (a, b) in enumerate(zip(answer.places, reference.places, strict=False)):
        if a.digest != b.digest:
            first = i if first is None else first
            size = max(size, _distance(a.top, b.top))
        if argmax is None and a.argmax != b.argmax:
            argmax = i
        if a.chosen != b.chosen:
            text = i
            break
    if text is None and len(answer.places) != len(reference.places):
        text = min(len(answer.places), len(reference.places))
        first = text if first is None else first
        size = _ENDED if not text else size
    return Shift(size, first, argmax, text)


def _distance(a: dict[str, float], b: dict[str, float]) -> float:
    """The largest difference; a label that only one of them lists is at most as likely as the other's last."""
    size = 0.0
    for x, y in ((a, b), (b, a)):
        least = min(y.values())
        size = max([size, *(abs(v - y[k]) if k in y else max(0.0, v - least) for k, v in x.items())])
    return size
