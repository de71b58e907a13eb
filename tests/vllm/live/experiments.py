"""The experiments: what is asked of which engine, as one JSON object a run.

python -m tests.vllm.live.experiments qwen3-next reuse,dense           where vLLM is installed
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from tests.vllm.live.engine import RULES, STOCK, Engine, engine, text

BUDGETS = (512, 1024, 2048, 8192)
OUTPUTS = 4  # tokens whose log-probabilities are compared


def lengths(block: int) -> list[int]:
    return [
        block - 1,
        block,
        block + 1,
        2 * block,
        2 * block + 17,
        5 * block,
        5 * block + 100,
        10 * block,
    ]


def reuse(served: Engine) -> dict[str, Any]:
    """Cached tokens of an immediate re-ask, and steps of the first ask, by budget, rule and length."""
    cells = []
    for budget in BUDGETS:
        for rule in RULES:
            served.cell(rule, budget)
            for length in lengths(served.block):
                prompt = text(f"reuse {length}", length)
                (cold,) = served.ask(prompt)
                (warm,) = served.ask(prompt)
                cells.append(
                    {
                        "budget": budget,
                        "rule": rule,
                        "length": length,
                        "ideal": (length - 1) // served.block * served.block,
                        "cached": warm.cached,
                        "steps": len(cold.ends),
                        "same": cold.digest == warm.digest,
                    }
                )
    return {"block": served.block, "cells": cells}


def dense(served: Engine) -> dict[str, Any]:
    """With every boundary kept: how many hold a state, and what siblings that share k blocks reuse."""
    found: dict[str, Any] = {}
    block = served.block
    for rule in RULES:
        kept = 0
        served.cell(rule, 8192, retention=None)
        for length in lengths(block):
            served.forget()
            served.ask(text(f"dense {length}", length))
            kept += states_of(served, length)
        served.forget()
        trunk = text("trunk", 10 * block)
        served.ask(trunk)
        reused = [
            served.ask([*trunk[: k * block + 5], *text(f"sibling {k}", 30)])[0].cached // block for k in range(1, 10)
        ]
        found[rule] = {"kept": kept, "reused": reused}
    return {"block": block, "boundaries": sum(n // block for n in lengths(block)), "rules": found}


def states_of(served: Engine, length: int) -> int:
    """Boundaries of the one prompt since `forget` whose state the cache holds."""
    (request,) = served.requests.values()
    pool = served.scheduler.kv_cache_manager.block_pool
    groups = served.scheduler.kv_cache_config.kv_cache_groups
    state = next(i for i, g in enumerate(groups) if type(g.kv_cache_spec).__name__ == "MambaSpec")
    per_block = served.block // served.scheduler.hash_block_size
    return sum(
        pool.get_cached_block(request.block_hashes[(k + 1) * per_block - 1], [state]) is not None
        for k in range(length // served.block)
    )


def outputs(served: Engine) -> dict[str, Any]:
    """Ten pairs A, B that share a prefix near a boundary: B after A, and B again, against B cold."""
    cells = [_pairs(served, rule, budget, "alone") for budget in BUDGETS for rule in RULES]
    for budget in (BUDGETS[0], BUDGETS[-1]):
        cells += [_pairs(served, rule, budget, place) for rule in (STOCK, "exact") for place in ("first", "last")]
    return {"block": served.block, "drafts": served.drafts(), "cells": cells}


def pairs(block: int, dropped: int) -> list[tuple[int, int, int]]:
    """(shared prefix, tail of A, tail of B) of ten pairs. The shared prefix ends on either side of a boundary; most B
    end a block or more past the boundary that A leaves, so that a cold run may pass it within a chunk. `dropped` blocks
    of a hit are given back where a drafter needs their last tokens."""
    shared = [(k + dropped) * block + more for k in (1, 5) for more in (-1, 0, 1, 40, 100)]
    return [(s, 20 + 3 * n, 90 + 11 * n + (0 if n in (2, 7) else block)) for n, s in enumerate(shared)]


def _pairs(served: Engine, rule: str, budget: int, place: str) -> dict[str, Any]:
    """How many pairs differ where B is alone in its steps, or first or last of four prompts that arrive together."""
    differ = unstable = reused = accepted = 0
    apart = 0.0
    served.cell(rule, budget)
    for n, (shared, of_a, of_b) in enumerate(pairs(served.block, int(served.frame.drop))):
        prefix = text(f"pair {n}", shared)
        a, b = prefix + text(f"a {n}", of_a), prefix + text(f"b {n}", of_b)
        served.forget()
        (cold,) = served.ask(b, tokens=OUTPUTS)
        if place == "alone":
            served.forget()
            unstable += served.ask(b, tokens=OUTPUTS)[0].digest != cold.digest
        served.forget()
        served.ask(a, tokens=OUTPUTS)
        mates = [] if place == "alone" else [text(f"mate {n} {m}", 150 + 77 * m) for m in range(3)]
        batch = [b, *mates] if place == "first" else [*mates, b]
        warm = [served.ask(*batch, tokens=OUTPUTS)[batch.index(b)] for _ in range(2)]
        differ += any(w.digest != cold.digest for w in warm)
        apart = max(apart, *(w.distance(cold) for w in warm))
        reused += sum(w.cached for w in warm)
        accepted += sum(OUTPUTS - 1 - w.decodes for w in warm)
    cell = {"budget": budget, "rule": rule, "company": place, "differ": differ, "unstable": unstable}
    cell |= {"reused": reused, "accepted": accepted, "apart": apart}
    print(json.dumps(cell), file=sys.stderr, flush=True)  # this takes minutes on a slow machine
    return cell


def smaller_block(served: Engine) -> dict[str, Any]:
    """Where another group's block is half that of the states: ten A, B that share a little more than four blocks, at a
    budget of three blocks and three quarters. B after A, and again, against B cold."""
    assert 2 * served.frame.config_minimum.tokens == served.block
    found: dict[str, Any] = {}
    for rule in RULES:
        served.cell(rule, 15 * served.block // 4)
        differ, cached, apart = 0, [], 0.0
        for n in range(10):
            prefix = text(f"mixed {n}", 4 * served.block + 6 * n)
            a, b = prefix + text(f"a {n}", 5 * served.block - 50 - len(prefix)), prefix + text(f"b {n}", 300 + 7 * n)
            served.forget()
            (cold,) = served.ask(b, tokens=OUTPUTS)
            served.forget()
            served.ask(a, tokens=OUTPUTS)
            first, second = (served.ask(b, tokens=OUTPUTS)[0] for _ in range(2))
            differ += any(w.digest != cold.digest for w in (first, second))
            cached.append((first.cached, second.cached))
            apart = max(apart, *(w.distance(cold) for w in (first, second)))
        found[rule] = {"differ": differ, "cached": cached, "apart": apart}
    return found


EXPERIMENTS: dict[str, Callable[[Engine], dict[str, Any]]] = {
    "reuse": reuse,
    "dense": dense,
    "outputs": outputs,
    "smaller_block": smaller_block,
}


def run(case: str, names: list[str], **options: Any) -> dict[str, Any]:
    with engine(case, **options) as served:
        status = served.scheduler.statemark.status.value
        found: dict[str, Any] = {"status": status}
        for name in names:
            found[name] = EXPERIMENTS[name](served)
            print(name, json.dumps(found[name]), file=sys.stderr, flush=True)
        return found


if __name__ == "__main__":
    print(
        "RESULT " + json.dumps(run(sys.argv[1], sys.argv[2].split(","), **json.loads(" ".join(sys.argv[3:]) or "{}")))
    )
