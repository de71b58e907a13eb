"""Documents of high entropy, from tokens that the server's own tokenizer makes; or pieces of an operator's document.

A document is a list of units: token ids, or words where a server takes text only. Equal seeds give equal documents.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from statemark.client.sample import sample_texts

Unit = int | str
_HEAD = 16  # tokens in front of the operator's document, where it must not be met again


def word_pool(seed: int) -> list[Unit]:
    """Units for a server that takes text only."""
    return [f" {word}" for word in sorted({w for text in sample_texts(seed) for w in text.split()})]


def prompt_of(units: Sequence[Unit]) -> list[int] | str:
    """As a request carries it."""
    if any(isinstance(u, str) for u in units):
        return "".join(map(str, units))
    return [int(u) for u in units]


class Documents:
    """Gives fresh documents; `own`: the operator's, which every long piece is then taken from.

    `pool`: units to draw from. `apart`: the operator's document is led in by other tokens each time, for servers where
    no salt keeps two requests that begin alike from sharing. Else documents share nothing but pieces of the operator's.
    """

    def __init__(self, pool: Sequence[Unit], seed: int | str, own: Sequence[Unit] = (), *, apart: bool = False) -> None:
        self.pool = sorted(set(pool), key=str)
        self.own = list(own)
        self.seed = seed
        self.apart = apart

    def fresh(self, name: str, length: int) -> list[Unit]:
        """`length` units, the same for the same name and seed."""
        return random.Random(f"{self.seed} {name}").choices(self.pool, k=length)

    def document(self, name: str, length: int) -> list[Unit]:
        """The beginning of the operator's document where there is one, else a fresh one."""
        head = self.fresh(f"{name} head", min(_HEAD, length)) if self.own and self.apart else []
        kept = self.own[: length - len(head)]
        return [*head, *kept, *self.fresh(name, length - len(head) - len(kept))]

    def piece(self, name: str, length: int) -> list[Unit]:
        """The same from anywhere in the operator's document, so that several pieces differ."""
        if len(self.own) < 2 * length:
            return self.document(name, length)
        start = random.Random(f"{self.seed} piece {name}").randrange(len(self.own) - length)
        return self.own[start : start + length]

    def edited(self, units: Sequence[Unit], position: int) -> list[Unit]:
        """The same units but for one, at `position`."""
        others = [u for u in self.pool if u != units[position]]
        changed = random.Random(f"{self.seed} edit {position}").choice(others)
        return [*units[:position], changed, *units[position + 1 :]]
