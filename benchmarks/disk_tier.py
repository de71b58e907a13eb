"""What the disk tier gains and costs: computing a prompt against reading it from files, and steps while it writes.

`python benchmarks/disk_tier.py --model FOLDER --folder EMPTY [--tokens 32 128 512 1024]`. For each length: seconds to
the first token computed, from files that the system has in memory, and from files that it has to read from the disk;
each answer is compared with the computed one. Then decode steps with a directory and without, in turns.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path

from statemark.cache.disk import Always
from statemark.engine.core import Engine
from statemark.engine.disk import DiskOptions
from statemark.engine.model_executor import ModelExecutor
from statemark.engine.params import SamplingParams
from statemark.engine.request import EngineRequest
from statemark.engine.sampler import Sampler
from statemark.kernels import Runtime
from statemark.models import Model, load_model

MEMORY = 1 << 30


class Bench:
    def __init__(self, model: Model, runtime: Runtime) -> None:
        self.model = model
        self.runtime = runtime

    def open(self, folder: Path | None) -> Engine:
        disk = None if folder is None else DiskOptions(path=folder, limit=8 << 30, pace=Always())
        executor = ModelExecutor(self.model, self.runtime)
        return Engine(executor, Sampler(self.runtime), cache_bytes=MEMORY, max_model_len=4096, disk=disk)

    def first(self, engine: Engine, prompt: tuple[int, ...]) -> tuple[float, list[int]]:
        """Seconds to the first token, and four tokens."""
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
        engine.add_request(EngineRequest(request_id="r", prompt_token_ids=prompt, params=params))
        begun, first, tokens = time.perf_counter(), 0.0, []
        while engine.has_work():
            for output in engine.step():
                first = first or time.perf_counter() - begun
                tokens += output.new_token_ids
        return first, tokens

    def decode_steps(self, folder: Path | None, prompts: list[tuple[int, ...]]) -> list[float]:
        """Seconds of each decode step of one request while others come, are computed and (with a folder) written."""
        engine = self.open(folder)
        params = SamplingParams(temperature=0.0, max_tokens=len(prompts) * 12, ignore_eos=True)
        engine.add_request(EngineRequest(request_id="long", prompt_token_ids=prompts[0][:16], params=params))
        steps: list[float] = []
        for i, prompt in enumerate(prompts):
            short = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
            engine.add_request(EngineRequest(request_id=f"s{i}", prompt_token_ids=prompt, params=short))
            for _ in range(10):
                before, begun = engine.tokens_computed, time.perf_counter()
                engine.step()
                if engine.tokens_computed - before == 1:
                    steps.append(time.perf_counter() - begun)
        engine.abort("long")
        engine.close(60)
        return steps


def drop_from_memory(folder: Path) -> None:
    for path in folder.iterdir():
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512, 1024])
    options = parser.parse_args()
    runtime = Runtime()
    bench = Bench(load_model(options.model, runtime=runtime), runtime)
    draw, vocab = random.Random(0), bench.model.spec.vocab_size
    bench.first(bench.open(None), tuple(draw.randrange(vocab) for _ in range(64)))
    print("| tokens | computed | files in memory | files on disk | read |\n|---|---|---|---|---|")
    for count in options.tokens:
        folder = options.folder / str(count)
        prompt = tuple(draw.randrange(vocab) for _ in range(count))
        engine = bench.open(folder)
        computed, right = bench.first(engine, prompt)
        engine.close(60)
        times = []
        for cold in (False, True):
            if cold:
                drop_from_memory(folder)
            engine = bench.open(folder)
            seconds, tokens = bench.first(engine, prompt)
            assert tokens == right
            assert engine.stats()["disk_hits"] == 1
            times.append(seconds)
            read = engine.stats()["disk_bytes_read"] / 2**20
        print(f"| {count:,} | {computed:.3f} s | {times[0]:.3f} s | {times[1]:.3f} s | {read:.1f} MiB |")
    steps: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(4):
        on = turn % 2 == 1
        prompts = [tuple(draw.randrange(vocab) for _ in range(64)) for _ in range(4)]
        steps[on] += bench.decode_steps(options.folder / f"steps{turn}" if on else None, prompts)
    for on, name in ((False, "without"), (True, "with")):
        found = sorted(steps[on])
        print(
            f"decode steps {name} a directory: median {statistics.median(found) * 1e3:.1f} ms, "
            f"90 % below {found[len(found) * 9 // 10] * 1e3:.1f} ms, longest {found[-1] * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
