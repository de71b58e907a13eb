"""One probe from the first request to the verdict: isolation, grid, scales, cells, and the search for the boundary."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from statemark.client.sample import sample_texts
from statemark.errors import ConfigurationError, ServerError
from statemark.probe.answer import Shift
from statemark.probe.bench import Bench, Cost
from statemark.probe.cells import TAIL, Cells
from statemark.probe.documents import Documents, Unit, word_pool
from statemark.probe.judge import FOREIGN, Observation, Scale, Verdict, contaminated, judge, suspects
from statemark.probe.plan import Options, Step, cost_words, duration, estimate, first_steps, grid_of, main_steps

Progress = Callable[[str, int, int], None]


@dataclass
class Result:
    """Everything that a report shows."""

    server: dict[str, Any]
    options: Options
    observations: list[Observation]
    verdict: Verdict
    grid: int | None
    scale: Scale
    boundary: dict[str, Any] | None
    cost: Cost
    expected: Cost
    abilities: dict[str, str] = field(default_factory=dict)  # what this server can be asked, and how
    notes: list[str] = field(default_factory=list)


class Memory:
    """What an earlier probe of the same server has measured: one JSON line a cell, appended as they end."""

    def __init__(self, path: Path | None, head: dict[str, Any]) -> None:
        self.cells: dict[str, list[Observation]] = {}
        self.scale: Scale | None = None
        self._file: TextIO | None = None
        if path is None:
            return
        known = path.exists() and path.stat().st_size > 0
        if known:
            self._read(path, head)
        self._file = path.open("a", encoding="utf-8")
        if not known:
            self._write(head)

    def _read(self, path: Path, head: dict[str, Any]) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        try:
            first = json.loads(lines[0])
        except ValueError:
            first = None
        if first != head:
            raise ConfigurationError(
                f"{path} is no record of a probe with this server, model and options",
                hint="name another file, or give the options that it was begun with",
            )
        for line in lines[1:]:
            try:
                data = json.loads(line)
                if "scale" in data:
                    self.scale = Scale(tuple((int(d), float(s)) for d, s in data["scale"]), float(data["foreign"]))
                    continue
                self.cells[data["name"]] = [_observation(o) for o in data["observations"]]
            except (ValueError, KeyError, TypeError):
                continue  # cut off while it was written: that cell is measured again

    def keep(self, name: str, observations: list[Observation]) -> None:
        self.cells[name] = observations
        self._write({"name": name, "observations": [o.figures() for o in observations]})

    def keep_scale(self, scale: Scale) -> Scale:
        self._write({"scale": scale.edits, "foreign": scale.foreign})
        return scale

    def _write(self, data: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(data) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _observation(data: dict[str, Any]) -> Observation:
    return Observation(
        cell=data["cell"], label=data["label"], prompt=data["prompt_tokens"], shared=data["shared_tokens"],
        cached=data["cached_tokens"], run=data["run"], digest=data["digest"], valid=data["valid"], why=data["why"],
        shift=Shift(data["size"], data["first_token"], data["argmax_changed_at"], data["text_changed_at"]),
    )  # fmt: skip


class Probe:
    """`own`: the operator's document as text or token ids. `tell` is given a line once blocks and speed are known.
    `expected`: the cost before they are, for the progress shown until then."""

    def __init__(
        self,
        bench: Bench,
        options: Options,
        expected: Cost,
        *,
        own: str | list[int] = "",
        memory: Memory,
        progress: Progress = lambda what, done, total: None,
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.bench, self.options, self.expected, self.memory = bench, options, expected, memory
        self.own = own
        self.progress = progress
        self.tell = tell
        self.observations: list[Observation] = []
        self.notes: list[str] = []
        self.abilities: dict[str, str] = {}
        self._speed = (1, 0, 0.0, 0.0)  # as `duration` takes it
        self.scale = Scale()

    async def run(self) -> Result:
        target = self.bench.session.target
        cells = Cells(self.bench, await self._documents(), notes=self.notes)
        room = target.max_model_len or self.options.limit + 2048
        cells.mate_tokens = max(16, min(2048, room - 64))
        grid: int | None = None
        boundary = None
        if await self._isolated(cells):
            await self._steps(first_steps(cells, self.options))
            grid = grid_of(self.observations)
            cells.grid = grid or 1
            self.expected = await estimate(self.options, cells.grid)
            self.expected.seconds = duration(self.expected, *self._speed)
            self.tell(f"{cost_words(self.expected)} in all, about {self.expected.seconds:.0f} s")
            if grid is None:
                self.notes.append(f"no prompt of up to {self.options.limit:,} tokens was reused when asked again")
            self.scale = self.memory.scale or self.memory.keep_scale(await cells.scale(self.options.limit))
            steps = main_steps(cells, self.options)
            await self._steps(steps)
            await self._twins(steps)
            boundary = await self._search(cells)
        verdict = judge(self.observations, self.scale)
        return Result(
            {"url": target.url, "make": target.make, "name": target.name, "model": target.model},
            self.options, self.observations, verdict, grid, self.scale, boundary,
            self.bench.cost, self.expected, self.abilities, self.notes,
        )  # fmt: skip

    async def _documents(self) -> Documents:
        session, seed = self.bench.session, self.options.seed
        ids: list[int] = []
        for text in sample_texts(seed):
            ids += await session.tokenize(text) or []
        pool: list[Unit] = list(ids) if ids else word_pool(seed)
        own: list[Unit] = []
        if isinstance(self.own, list):
            own = list(self.own)
        elif self.own:
            found = await session.tokenize(self.own)
            if found is None:
                raise ServerError("protocol", f"{session.url} can't tokenize the document", hint="give token ids")
            own = list(found)
        if not ids:
            self.notes.append("the server tokenizes for nobody: documents are words, lengths below count words")
        self.abilities["documents"] = "token ids" if ids else "words"
        if session.target.salts:
            return Documents(pool, seed, own)
        return Documents(pool, f"{seed} {self.bench.run}", own, apart=True)  # new ones, since no salt is

    async def _isolated(self, cells: Cells) -> bool:
        """Can a request be answered as if nobody had asked before? Also learns where cached tokens are told."""
        units = cells.documents.fresh("isolation", self.options.limit)
        first = await self.bench.ask(units, "isolation one")
        times = [self.bench.cost.seconds]
        again = await self.bench.ask(units, "isolation one")
        times.append(self.bench.cost.seconds)
        told = "usage"
        if again.cached is None:
            told = self.bench.counting = "metrics"
            if await self.bench.session.hits() is None:
                self.bench.counting, told = "usage", "nowhere"
                self.notes.append(
                    "neither usage nor /metrics tells cached tokens (vLLM: --enable-prompt-tokens-details, "
                    "SGLang: --enable-cache-report)"
                )
        target = self.bench.session.target
        cold = "cache_salt" if target.salts else "cache_prompt: false" if target.uncached else "no way is known"
        self.abilities |= {"cold answers": cold, "cached tokens": told, "ids of answers": "told" if first.ids else "no"}
        if not self.bench.can_isolate:
            self.notes.append("no way is known to ask this server for an answer without its cache")
            return False
        other = await self.bench.ask(units, "isolation two", cache=False)
        shared = bool(other.cached)
        # The very first answer may have waited for what a server sets up once: cold is the third.
        self._speed = (len(units), again.cached or 0, self.bench.cost.seconds - times[1], times[1] - times[0])
        self.observations.append(
            Observation(
                cell="salt", label=f"{len(units):,} tokens", prompt=len(units), cached=other.cached,
                shift=Shift(0.0, 0 if shared else None),
            )
        )  # fmt: skip
        if shared:
            self.notes.append("salts separate nothing, so nothing else can be measured")
        return not shared

    async def _steps(self, steps: list[Step]) -> None:
        for step in steps:
            self.progress(step.name, self.bench.cost.prompt_tokens, max(self.expected.prompt_tokens, 1))
            found = self.memory.cells.get(step.name)
            if found is None:
                found = await step.run()
                failed = next((o.why for o in found if not o.valid), "")
                if failed and step.smaller is not None:
                    self.notes.append(f"{step.name}: tried again with shorter requests ({failed})")
                    found = await step.smaller()
                self.memory.keep(step.name, found)
            self.observations += found

    async def _twins(self, steps: list[Step]) -> None:
        """Is it who wrote, or only how long the writer's prompt was? Asked until one answer has no explanation left."""
        for step in steps:
            large, small = suspects(self.observations, self.scale)
            if large:
                return  # too large for any chunk shape
            mine = self.memory.cells[step.name]
            if step.twin is None or not any(s is o for s in small for o in mine):
                continue
            await self._steps([Step(f"{step.name}, twin", step.twin)])
            if any(s is o for s in contaminated(self.observations, self.scale) for o in mine):
                return

    async def _search(self, cells: Cells) -> dict[str, Any] | None:
        """Between nothing shared and what was contaminated, the shortest shared prefix that spoils an answer."""
        bad = [o for o in contaminated(self.observations, self.scale) if o.cell in (*FOREIGN, "again")]
        if not bad:
            return None
        foreign = [o for o in bad if o.cell != "again"]
        worst = min(foreign or bad, key=lambda o: o.shared)
        cell = "boundary" if foreign else "again"
        low, high = 0, worst.shared
        step = cells.grid if cells.grid >= 16 else 1
        tries = 0
        while high - low > step and tries < 14:
            middle = max(low + 1, (low + high) // 2 // step * step)
            self.progress(f"boundary {low}-{high}", 99, 100)
            if cell == "again":
                found = await cells.again(middle, 1)
            else:
                found = await cells.written("boundary", middle, [2 * TAIL])
            self.observations += found
            tries += 1
            spoiled = any(o is b for o in found for b in contaminated(self.observations, self.scale))
            low, high = (low, middle) if spoiled else (middle, high)
        return {"cell": cell, "right_up_to": low, "wrong_from": high, "blocks": round(high / step, 2), "block": step}
