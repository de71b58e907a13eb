"""The cells: which requests follow which, and what each observation means. Knows no HTTP and gives no verdict.

A, B are documents that share their first tokens. A cell has its own cache salt, or documents that nobody has seen.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from statemark.probe.answer import Answer, compare
from statemark.probe.bench import Asked, Asker
from statemark.probe.documents import Documents, Unit
from statemark.probe.judge import ALONE, NOTHING, Observation, Scale
from statemark.words import counted

TAIL = 27  # tokens of B behind the shared ones, where nothing else is asked for
_WRITERS = 3  # requests that share a prefix before B, at most
_CHANCE = 8  # tokens by which random tails may begin alike
_SCALE_LENGTH, _SCALE_DOCUMENTS = 640, 3
_SCALE_BEHIND = (1, 8, 27, 90, 300)
MATES = 3  # requests that decode beside B
MUTE = "the server doesn't say how many tokens it reused"


@dataclass
class Cells:
    """Runs cells. `grid`: tokens that hits are a multiple of, once known (1: they end anywhere)."""

    asker: Asker
    documents: Documents
    grid: int = 1
    mate_tokens: int = 2048  # how long requests that decode beside B would go on
    serial: int = 0
    notes: list[str] = field(default_factory=list)

    def salt(self) -> str:
        self.serial += 1
        return f"cell {self.serial}"

    async def cold(self, units: Sequence[Unit]) -> Asked:
        """B as if nobody had asked before."""
        return await self.asker.ask(units, self.salt(), cache=False)

    def expected(self, prompt: int, shared: int) -> int:
        """Tokens that a hit can have at most."""
        return min(shared, prompt - 1) // self.grid * self.grid

    # --- without hits ---------------------------------------------------------------------------------------

    async def repeat(self, length: int, times: int = 3) -> list[Observation]:
        units = self.documents.document(f"repeat {length}", length)
        reference = await self.cold(units)
        found = []
        for run in range(1, times + 1):
            asked = await self.cold(units)
            found.append(self._cold_observation("repeat", asked, reference.answer, run))
        return found

    async def mates(self, length: int, tokens: int | None = None) -> list[Observation]:
        """B cold, and B as a hit, while others decode; `tokens`: how many each of them would."""
        units = self.documents.document(f"mates {length}", length)
        prompts = [self.documents.fresh(f"mate {i} {length}", 24 + 5 * i) for i in range(MATES)]
        company = await self.asker.company(prompts, self.salt(), tokens or self.mate_tokens)
        warm = self.salt()
        first = await self.cold(units)
        await self.asker.ask(units, warm)
        second = await self.asker.ask(units, warm)
        if second.cached == 0:
            second = await self.asker.ask(units, warm)
        gone = await company.end()
        reference = (await self.cold(units)).answer
        cold = self._cold_observation("mates", first, reference, 1, gone)
        return [cold, self._hit("mates hit", second, reference, len(units), 2, gone)]

    async def chunks(self, length: int, others: Sequence[int]) -> list[Observation]:
        """B cold beside long prompts, so that its own prompt is cut elsewhere."""
        units = self.documents.document(f"chunks {length}", length)
        prompts = [self.documents.fresh(f"beside {i} {length}", n) for i, n in enumerate(others)]
        company = await self.asker.company(prompts, self.salt(), 1)
        await asyncio.sleep(0)
        asked = await self.cold(units)
        gone = await company.end()
        reference = (await self.cold(units)).answer
        return [self._cold_observation("chunks", asked, reference, 1, gone)]

    def _cold_observation(self, cell: str, asked: Asked, reference: Answer, run: int, why: str = "") -> Observation:
        if asked.cached:
            why = f"{counted(asked.cached, 'token')} came from the cache where none should"
        return _observed(cell, asked, reference, run, why)

    # --- with hits ------------------------------------------------------------------------------------------

    async def again(self, length: int, times: int = 2) -> list[Observation]:
        """The same prompt over again. Some servers keep a state only when a prompt comes for the second time: an early
        miss is said in a note, and it is invalid if none of them hits."""
        units = self.documents.document(f"again {length}", length)
        salt = self.salt()
        await self.asker.ask(units, salt)
        runs = [await self.asker.ask(units, salt) for _ in range(times)]
        reference = (await self.cold(units)).answer
        late = bool(runs[-1].cached)
        if late and runs[0].cached == 0:
            self.notes.append(f"{length:,} tokens asked again reused nothing at first, and {runs[-1].cached:,} later")
        return [self._hit("again", asked, reference, length, run, late=late) for run, asked in enumerate(runs, 2)]

    async def written(
        self, cell: str, shared: int, tails: Sequence[int], tail: int = TAIL, times: int = 2, *, twin: bool = False
    ) -> list[Observation]:
        """A with each of `tails` once, then B `times`; all share `shared` tokens. `twin`: other tokens in A's tails.

        Where nothing is kept of a prefix until a second request leaves it, B's first run misses, and what follows are
        hits on what B itself has written: then it starts over with one writer more. It is invalid if B never hits.
        """
        name = f"{cell} {shared} {tails} {tail}"
        prefix = self.documents.document(name, shared)
        units = [*prefix, *self.documents.fresh(f"{name} B", tail)]
        salt = self.salt()
        for i, n in enumerate(tails):
            await self.asker.ask([*prefix, *self.documents.fresh(f"{name} A{i} {'twin' * twin}", n)], salt)
        runs = [await self.asker.ask(units, salt)]
        missed = runs[0].cached == 0 and self.expected(len(units), shared) > 0
        if missed and len(tails) < _WRITERS:
            return await self.written(cell, shared, [*tails, tails[-1] + 3], tail, times, twin=twin)
        runs += [await self.asker.ask(units, salt) for _ in range(times - 1)]
        reference = (await self.cold(units)).answer
        why = ""
        if any(asked.cached is None for asked in runs):
            why = MUTE
        elif (runs[0].cached or 0) > shared + _CHANCE and isinstance(units[0], int):  # a word may be many tokens
            why = f"{runs[0].cached} tokens were reused where {shared} are shared: somebody has asked this before"
        elif missed:
            why = ALONE if any(asked.cached for asked in runs) else NOTHING
        written = " and ".join(f"{shared + n:,}" for n in tails)
        label = f"{shared:,} of {len(units):,}, written by {written}"
        return [
            _observed("twin" if twin else cell, asked, reference, run, why, shared=shared, label=label)
            for run, asked in enumerate(runs, 1)
        ]

    async def turns(self, length: int, count: int = 3) -> list[Observation]:
        """A conversation: each turn's prompt is the last one's, its answer and something new. The first may miss, as in
        `again`."""
        units = self.documents.document(f"turns {length}", length)
        salt = self.salt()
        found: list[Observation] = []
        asked = await self.asker.ask(units, salt)
        prompts, warm = [], []
        for turn in range(2, count + 1):
            answer: Sequence[Unit] = asked.ids or self.documents.fresh(f"answer {turn} {length}", 8)
            shared = len(units)
            units = [*units, *answer, *self.documents.fresh(f"turn {turn} {length}", 31)]
            asked = await self.asker.ask(units, salt)
            prompts.append((units, shared))
            warm.append(asked)
        late = bool(warm[-1].cached)
        if late and warm[0].cached == 0:
            self.notes.append(f"a second turn of {warm[0].prompt:,} tokens reused nothing, and a later one did")
        for (prompt, shared), asked in zip(prompts, warm, strict=True):
            reference = (await self.cold(prompt)).answer
            found.append(self._hit("turns", asked, reference, shared, len(found) + 2, late=late))
        return found

    def _hit(
        self, cell: str, asked: Asked, reference: Answer, shared: int, run: int, why: str = "", *, late: bool = False
    ) -> Observation:
        if asked.cached is None:
            why = why or MUTE
        elif not asked.cached and not late and self.expected(asked.prompt, shared):
            why = why or NOTHING
        return _observed(cell, asked, reference, run, why, shared=shared)

    # --- how much a change of the prompt moves ----------------------------------------------------------------

    async def scale(self, limit: int) -> Scale:
        """What an edited token makes, by how many tokens stand behind it, and what another document makes."""
        length = min(limit, _SCALE_LENGTH)
        distances = [d for d in _SCALE_BEHIND if 2 * d <= length]
        edits: list[list[float]] = [[] for _ in distances]
        foreign = []
        for i in range(_SCALE_DOCUMENTS):
            units = self.documents.piece(f"scale {i}", length)
            reference = (await self.cold(units)).answer
            for found, behind in zip(edits, distances, strict=True):
                edited = await self.cold(self.documents.edited(units, length - 1 - behind))
                found.append(compare(edited.answer, reference).size)
            other = [*self.documents.fresh(f"scale {i} other", length - TAIL), *units[-TAIL:]]
            foreign.append(compare((await self.cold(other)).answer, reference).size)
        return Scale(
            tuple((d, statistics.median(found)) for d, found in zip(distances, edits, strict=True)),
            statistics.median(foreign),
        )


def _observed(
    cell: str, asked: Asked, reference: Answer, run: int, why: str, *, shared: int = 0, label: str = ""
) -> Observation:
    """What was asked beside its cold reference; valid unless `why` says what didn't happen."""
    return Observation(
        cell=cell,
        label=label or f"{asked.prompt:,} tokens",
        prompt=asked.prompt,
        shared=shared,
        cached=asked.cached,
        run=run,
        shift=compare(asked.answer, reference),
        digest=asked.answer.digest,
        valid=not why,
        why=why,
    )
