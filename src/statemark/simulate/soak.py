"""A long random history of requests on the whole engine without a model: what must hold afterwards is that nothing is
left of it. Same seed, same history.

`python -m statemark.simulate.soak [--requests 100000] [--seed 0] [--folder EMPTY [--damage 0.01]]`
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from statemark.cache.disk import Always
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.sampler import Sampler
from statemark.errors import IntegrityError
from statemark.simulate.executor import SimulatedExecutor, SimulatedReductions

_LONGEST = 600


def simulated_engine(
    executor: SimulatedExecutor,
    cache_bytes: int,
    *,
    seqs: int,
    budget: int,
    max_model_len: int = _LONGEST,
    enable_prefix_caching: bool = True,
    disk: DiskOptions | None = None,
) -> Engine:
    """An engine over it, with the real scheduler, cache and sampler."""
    return Engine(
        executor,
        Sampler(SimulatedReductions()),
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        cache_bytes=cache_bytes,
        max_model_len=max_model_len,
        enable_prefix_caching=enable_prefix_caching,
        disk=disk,
    )


@dataclass
class Soak:
    """Chats that go on, are edited, asked again or given up, on a cache that holds a handful of them.

    `pages`, `slots`: what the cache holds. Every `check_every` requests the whole cache is checked. `damage`: how
    likely a file of `folder` has a byte changed, is cut short or vanishes before a request.
    """

    seed: int = 0
    pages: int = 160
    slots: int = 24
    check_every: int = 500
    folder: Path | None = None  # a directory for the disk tier
    disk_bytes: int = 2 << 20
    damage: float = 0.0
    damaged: int = 0
    finished: int = 0
    aborted: int = 0
    _chats: list[list[int]] = field(default_factory=list)
    _open: dict[str, list[int]] = field(default_factory=dict)

    def run(self, requests: int) -> Engine:
        """Answer or abort that many requests; raises IntegrityError if anything is left of them."""
        draw = random.Random(self.seed)
        executor = SimulatedExecutor(page_bytes=1 << 10, slot_bytes=16 << 10)
        total = self.pages * executor.page_bytes + self.slots * executor.slot_bytes
        disk = None
        if self.folder is not None:
            disk = DiskOptions(path=self.folder, limit=self.disk_bytes, pace=Always())
        engine = simulated_engine(executor, total, seqs=8, budget=256, disk=disk)
        sent = 0
        while sent < requests or engine.has_work():
            while sent < requests and len(self._open) < 10:
                if self.damage and draw.random() < self.damage:
                    self._damage(draw)
                self._send(engine, draw, sent)
                sent += 1
                if sent % self.check_every == 0:
                    engine.check_integrity()
            self._step(engine, draw)
        engine.check_integrity()
        engine.close()
        engine.cache.reset()
        used = engine.cache.budget.used_bytes
        if used or len(engine.cache.index) or len(engine.cache.order):
            raise IntegrityError(f"{used} bytes and {len(engine.cache.index)} marks are left after {requests} requests")
        # A damaged file that nobody asked for is found by the next process.
        if self.folder is not None and self.damage:
            simulated_engine(executor, total, seqs=8, budget=256, disk=disk).cache.reset()
        left = [] if self.folder is None else sorted(path.name for path in self.folder.iterdir())
        if left:
            raise IntegrityError(f"{len(left)} files are left, {left[0]} for one")
        return engine

    def _damage(self, draw: random.Random) -> None:
        assert self.folder is not None
        files = sorted(self.folder.glob("*.mark"))
        if not files:
            return
        path, kind = draw.choice(files), draw.randrange(3)
        self.damaged += 1
        try:
            if kind == 0:
                path.unlink()
                return
            raw = bytearray(path.read_bytes())
            raw[draw.randrange(len(raw))] ^= 1 + draw.randrange(255)
            path.write_bytes(raw if kind == 1 else raw[: 1 + draw.randrange(len(raw))])  # not empty: it may come again
        except FileNotFoundError:  # it has just made room for another one
            self.damaged -= 1

    def _send(self, engine: Engine, draw: random.Random, number: int) -> None:
        kind = draw.random()
        if not self._chats or kind < 0.1:
            prompt = [draw.randrange(256) for _ in range(draw.randrange(1, 120))]
        else:
            prompt = list(draw.choice(self._chats))
            if kind < 0.2:  # edited somewhere
                prompt = [*prompt[: draw.randrange(1, len(prompt) + 1)], draw.randrange(256)]
            elif kind < 0.9:  # goes on
                prompt += [draw.randrange(256) for _ in range(draw.randrange(1, 40))]
        prompt = prompt[: _LONGEST - 40]
        name = f"r{number}"
        params = SamplingParams(temperature=0.0, max_tokens=draw.randrange(1, 30))
        engine.add_request(
            EngineRequest(
                request_id=name,
                prompt_token_ids=tuple(prompt),
                params=params,
                turn_positions=tuple(sorted(draw.randrange(1, len(prompt) + 1) for _ in range(draw.randrange(3)))),
                cache_salt=draw.choice(("", "", "", "other")),
                use_cache=draw.random() < 0.95,
            )
        )
        self._open[name] = prompt

    def _step(self, engine: Engine, draw: random.Random) -> None:
        for output in engine.step():
            if output.error is not None:
                raise IntegrityError(f"{output.request_id} failed: {output.error}")
            self._open[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                self.finished += 1
                chat = self._open.pop(output.request_id)
                self._chats.append(chat[: _LONGEST - 60])
                if len(self._chats) > 12:
                    self._chats.pop(draw.randrange(12))
        if self._open and draw.random() < 0.02:
            name = draw.choice(sorted(self._open))
            engine.abort(name)
            self.aborted += 1
            del self._open[name]


def main() -> None:
    parser = argparse.ArgumentParser(description="A long random history that must leave nothing.")
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty directory for the disk tier")
    parser.add_argument("--damage", type=float, default=0.0, help="how likely a file is damaged before a request")
    options = parser.parse_args()
    if options.folder is not None and options.folder.is_dir() and any(options.folder.iterdir()):
        parser.error(f"{options.folder} is not empty")
    if options.damage and options.folder is None:
        parser.error("--damage needs a --folder")
    soak = Soak(seed=options.seed, check_every=10_000, folder=options.folder, damage=options.damage)
    begun = time.process_time()
    stats = soak.run(options.requests).stats()
    said = {"finished": soak.finished, "aborted": soak.aborted, "damaged": soak.damaged}
    seconds = round(time.process_time() - begun, 1)
    print(json.dumps({**said, "seconds": seconds, **stats}, sort_keys=True))


if __name__ == "__main__":
    main()
