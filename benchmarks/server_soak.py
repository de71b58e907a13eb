"""Holds many streams open against a running server for minutes: says what is lost and why, and watches its memory.

    statemark serve --model ./tiny --max-waiting 1000 --cache-memory 64MiB &
    python benchmarks/server_soak.py --url http://127.0.0.1:8000 --pid $! --streams 500 --minutes 10

Prints one JSON object. Exit code 1 if a stream was lost, or if memory grew by more than a tenth after the cache had
filled: until then it grows on purpose. Where the cache never filled, memory isn't judged, which the object says.

A request that met a connection which the server was just closing is sent again once, as the SDKs do, and counted: the
server closes idle connections after two minutes, so that happens where processes were suspended, and never else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from statemark.bench.machine import machine_facts

_GROWTH = 1.1
_FULL = 0.9  # of the cache: what makes room frees more than it needs


class Sample(NamedTuple):
    """The server's resident bytes, and whether its cache was full."""

    resident: int
    full: bool


def resident_bytes(pid: int) -> int:
    """Resident memory of a process on Linux."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


def is_full(metrics: str) -> bool:
    """Whether a scrape of /metrics says that the cache has filled: something had to make room, or is about to."""
    found = {
        sample.name: sample.value for family in text_string_to_metric_families(metrics) for sample in family.samples
    }
    used, size = found["statemark:cache_used_bytes"], found["statemark:cache_bytes"]
    return found["statemark:cache_marks_evicted_total"] > 0 or used >= _FULL * size > 0


def judged(samples: Sequence[Sample]) -> dict[str, Any]:
    """Memory in the first fifth of the time with a full cache, beside the most of all that time."""
    begin = next((number for number, sample in enumerate(samples) if sample.full), len(samples))
    full = [sample.resident for sample in samples[begin:]]
    if len(full) < 2:
        return {"memory_judged": False, "memory_most_bytes": max((s.resident for s in samples), default=0)}
    early, late = max(full[: len(full) // 5 or 1]), max(full)
    return {
        "memory_judged": True,
        "memory_early_bytes": early,
        "memory_most_bytes": late,
        "memory_grew": late > _GROWTH * early,
    }


class UnansweredError(Exception):
    """A connection that ended before anything of an answer had come."""


async def ask(client: httpx.AsyncClient, rng: random.Random) -> str | None:
    """One stream; None if it came whole or was left on purpose, otherwise what became of it."""
    words = " ".join(rng.choices(["state", "mark", "page", "token", "prefix"], k=rng.randint(3, 40)))
    body = {"prompt": words, "max_tokens": rng.randint(1, 64), "ignore_eos": True, "stream": True}
    leaves = rng.random() < 0.1
    frames, last = 0, ""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                return f"status {response.status_code}: {(await response.aread())[:200].decode(errors='replace')}"
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    last = line
                    frames += 1
                    if line.startswith('data: {"error"'):
                        return f"error frame: {line[:200]}"
                    if leaves:
                        return None
    except httpx.HTTPError as error:
        if not frames and isinstance(error, (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)):
            raise UnansweredError(f"{type(error).__name__} after no frames: {error}") from None
        return f"{type(error).__name__} after {'no' if not frames else 'some'} frames: {error}"
    return None if last == "data: [DONE]" else "ended without its last frame"


async def soak(url: str, pid: int, streams: int, seconds: float, seed: int) -> dict[str, Any]:
    begin = time.monotonic()
    end = begin + seconds
    whole = again = 0
    suspended = 0.0
    lost: Counter[str] = Counter()
    samples: list[Sample] = []

    async def user(client: httpx.AsyncClient, number: int) -> None:
        nonlocal whole, again
        rng = random.Random(seed * 100_003 + number)
        while time.monotonic() < end:
            try:
                why = await ask(client, rng)
            except UnansweredError:
                again += 1
                try:
                    why = await ask(client, rng)
                except UnansweredError as error:
                    why = str(error)
            if why is None:
                whole += 1
            else:
                lost[why] += 1
                print(f"lost after {time.monotonic() - begin:.1f} s: {why}", file=sys.stderr)

    async def watch(client: httpx.AsyncClient) -> None:
        while time.monotonic() < end:
            full = is_full((await client.get("/metrics")).text)
            samples.append(Sample(resident_bytes(pid), full))
            await asyncio.sleep(seconds / 100)

    async def clock() -> None:
        """How long this process stood still, at most: whoever suspends it and the server makes time-outs of both."""
        nonlocal suspended
        while (before := time.monotonic()) < end:
            await asyncio.sleep(0.5)
            suspended = max(suspended, time.monotonic() - before - 0.5)

    limits = httpx.Limits(max_connections=streams + 1)
    async with httpx.AsyncClient(base_url=url, timeout=seconds + 600, limits=limits) as client:
        await asyncio.gather(clock(), watch(client), *(user(client, number) for number in range(streams)))
    counts = {"whole": whole, "lost": lost.total(), "lost_because": dict(lost)}
    counts |= {"sent_again": again, "longest_standstill_seconds": round(suspended, 1)}
    found = {"streams": streams, "seconds": seconds, **counts, **judged(samples), "rss_bytes": _every(samples, 20)}
    return found | {"machine": machine_facts()}


def _every(samples: Sequence[Sample], count: int) -> list[int]:
    """`count` of the samples of resident memory, evenly over the time."""
    step = max(1, len(samples) // count)
    return [sample.resident for sample in samples[::step]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--pid", type=int, required=True, help="the server's process")
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = asyncio.run(soak(given.url, given.pid, given.streams, given.minutes * 60, given.seed))
    print(json.dumps(found))
    return 1 if found["lost"] or found.get("memory_grew") else 0


if __name__ == "__main__":
    sys.exit(main())
