"""Holds many streams open against a running server for minutes: counts what is lost and watches the server's memory.

    statemark serve --model ./tiny --max-waiting 1000 &
    python benchmarks/server_soak.py --url http://127.0.0.1:8000 --pid $! --streams 500 --minutes 10

Prints one JSON object. Exit code 1 if a stream was lost, or if memory grew by more than a tenth after the first fifth
of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from pathlib import Path

import httpx

_GROWTH = 1.1


def resident_bytes(pid: int) -> int:
    """Resident memory of a process on Linux."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


async def ask(client: httpx.AsyncClient, rng: random.Random) -> bool:
    """One stream; True if it came whole, or was left on purpose."""
    words = " ".join(rng.choices(["state", "mark", "page", "token", "prefix"], k=rng.randint(3, 40)))
    body = {"prompt": words, "max_tokens": rng.randint(1, 64), "ignore_eos": True, "stream": True}
    leaves = rng.random() < 0.1
    last = ""
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            return False
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                last = line
                if leaves:
                    return True
    return last == "data: [DONE]"


async def soak(url: str, pid: int, streams: int, seconds: float, seed: int) -> dict[str, object]:
    end = time.monotonic() + seconds
    counts = {"whole": 0, "lost": 0}
    memory: list[int] = []

    async def user(client: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(seed * 100_003 + number)
        while time.monotonic() < end:
            try:
                whole = await ask(client, rng)
            except httpx.HTTPError:
                whole = False
            counts["whole" if whole else "lost"] += 1

    async def watch() -> None:
        while time.monotonic() < end:
            memory.append(resident_bytes(pid))
            await asyncio.sleep(seconds / 100)

    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, timeout=seconds + 600, limits=limits) as client:
        await asyncio.gather(watch(), *(user(client, number) for number in range(streams)))
    early, late = max(memory[: len(memory) // 5 or 1]), max(memory)
    return {"streams": streams, "seconds": seconds, **counts, "memory_early_bytes": early, "memory_most_bytes": late}


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
    grown = found["memory_most_bytes"] > _GROWTH * found["memory_early_bytes"]  # type: ignore[operator]
    return 1 if found["lost"] or grown else 0


if __name__ == "__main__":
    sys.exit(main())
