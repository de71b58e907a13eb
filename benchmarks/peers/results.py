"""A comparison's result as plain data, and the tables that documents quote. Measures nothing.

python benchmarks/peers/results.py        # puts the tables of benchmarks/results/ into README.md
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import ENGINES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
# From here on a prompt's rate is also told as the time to its first token.
LONG = 8192
AGENT_KEYS = ("duration", "p50_ttft_ms", "p90_ttft_ms", "cached_tokens", "ideal_cached_tokens")

Runs = Sequence[Mapping[str, Mapping[str, float]]]


def summarise(runs: Runs) -> dict[str, Any]:
    """From rounds of cell -> engine -> tokens a second to medians, and ratios of ours to the peers.

    A ratio is the median of the rounds' own ratios, of rounds in which both ran: what slowed a whole round down drops
    out of it. Of a group of rivals the one with the higher median counts.
    """
    cells: dict[str, Any] = {}
    for cell in sorted({cell for run in runs for cell in run}, key=_place):
        rounds = [run[cell] for run in runs if cell in run]
        seen = [name for name in ENGINES if any(name in rates for rates in rounds)]
        engines = {name: _figures([rates[name] for rates in rounds if name in rates]) for name in seen}
        ratios = []
        for ours in seen:
            for group in ENGINES[ours].rivals:
                there = [name for name in group if any(ours in rates and name in rates for rates in rounds)]
                if there:
                    best = max(there, key=lambda name: engines[name]["median"])
                    shared = [rates[ours] / rates[best] for rates in rounds if ours in rates and best in rates]
                    ratio = round(statistics.median(shared), 2)
                    ratios.append({"ours": ours, "group": list(group), "peer": best, "ratio": ratio,
                                   "rounds": [round(r, 3) for r in shared]})  # fmt: skip
        cells[cell] = {"engines": engines, "ratios": ratios}
    return cells


def _figures(rates: Sequence[float]) -> dict[str, Any]:
    middle = statistics.median(rates)
    return {"median": round(middle, 2), "low": round(min(rates), 2), "high": round(max(rates), 2), "rounds": len(rates)}


def table(result: Mapping[str, Any]) -> str:
    """Markdown: one column a cell; one line an engine, and under each of ours its share of the machine's limit and its
    ratio to the peers, with the peers' own lines before."""
    cells = summarise(result["runs"])
    lines = ["| tok/s | " + " | ".join(cells) + " |", "|---|" + "---|" * len(cells)]
    known = {name for cell in cells.values() for name in cell["engines"]}
    for ours in (name for name in ENGINES if name in known and ENGINES[name].rivals):
        rivals = [name for group in ENGINES[ours].rivals for name in group if name in known]
        for name in (ours, *rivals):
            found = [cell["engines"].get(name) for cell in cells.values()]
            lines.append(f"| {ENGINES[name].label} | " + " | ".join(map(_value, found)) + " |")
        for group in ENGINES[ours].rivals:
            lines += _ratio_line(cells, ours, [name for name in group if name in known])
        lines += _limit_line(result, cells, ours)
    return "\n".join(lines) + "\n"


def _ratio_line(cells: Mapping[str, Any], ours: str, group: Sequence[str]) -> list[str]:
    values = []
    for cell in cells.values():
        found = [r["ratio"] for r in cell["ratios"] if r["ours"] == ours and r["peer"] in group]
        values.append(f"**{found[0]:.2f}x**" if found else "")
    if not any(values):
        return []
    whom = ENGINES[group[0]].label if len(group) == 1 else "the faster of " + ", ".join(ENGINES[n].label for n in group)
    return [f"| {ENGINES[ours].label} to {whom} | " + " | ".join(values) + " |"]


def _limit_line(result: Mapping[str, Any], cells: Mapping[str, Any], ours: str) -> list[str]:
    """Share of what the machine's rate of bf16 products (prefill) or of reading (one stream) allows.

    Packed weights have no limit of products here: it depends on what they are unpacked to.
    """
    weights, values = ENGINES[ours].weights, []
    work = result["work"][weights]
    for name, cell in cells.items():
        limit = 0.0
        if name.startswith("prefill") and weights == "bfloat16":
            limit = result["limits"]["product_rate"] / work["prefill_flops"]
        elif name == "decode, 1 stream":
            limit = result["limits"]["read_rate"] / work["decode_bytes"]
        figures = cell["engines"].get(ours)
        values.append(f"{figures['median'] / limit:.0%}" if limit and figures else "")
    if not any(values):
        return []
    return [f"| {ENGINES[ours].label}, of the machine's limit | " + " | ".join(values) + " |"]


def _value(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return ""
    median = figures["median"]
    return f"{median:.0f}" if median >= 100 else f"{median:.1f}"


def _place(cell: str) -> tuple[bool, int]:
    """Prefill before decode, small numbers before large ones."""
    return not cell.startswith("prefill"), int(re.findall(r"\d+", cell)[0])


def report(result: Mapping[str, Any]) -> str:
    """The page beside the JSON file: the table, and all that is needed to repeat it."""
    machine, model = result["machine"], result["model"]
    lines = [
        f"# Statemark and its peers, {result['date']}",
        "",
        table(result),
        f"{_rounds(result)}, engines taking turns in each, all warm. The machine's limit is its rate of "
        "bf16 products over the operations of the linear layers (prefill) or its read rate over their bytes (decode).",
        "",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, {machine['system']}; "
        f"load average before the run {result['load_average']}",
        f"- limits measured in the same run: {limits_text(result)}",
        f"- model: {model['name']}, random weights, {model['bytes'] / 1e9:.2f} GB in bfloat16",
    ]
    lines += [f"- seconds to the first token of {tokens} tokens: {text}"
              for tokens, text in long_prompts(result)]  # fmt: skip
    lines += [f"- command: `{command}`" for command in dict.fromkeys(result["commands"])]
    lines += [f"- {facts['label']}: " + ", ".join(f"{k} {v}" for k, v in facts.items() if k != "label")
              for facts in result["engines"].values()]  # fmt: skip
    return "\n".join(lines) + "\n"


def long_prompts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, cell in summarise(result["runs"]).items():
        tokens = int(re.findall(r"\d+", name)[0])
        if name.startswith("prefill") and tokens >= LONG:
            times = [f"{ENGINES[e].label} {tokens / f['median']:.1f}" for e, f in cell["engines"].items()]
            found.append((str(tokens), ", ".join(times)))
    return found


def _rounds(result: Mapping[str, Any]) -> str:
    counts = sorted({f["rounds"] for cell in summarise(result["runs"]).values() for f in cell["engines"].values()})
    return f"Medians of {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} round{'s' * (counts[-1] > 1)}"


def limits_text(result: Mapping[str, Any]) -> str:
    limits = result["limits"]
    products, read = limits["product_rate"] / 1e9, limits["read_rate"] / 1e9
    return f"{products:.0f} GFLOP/s of bf16 products from registers, {read:.1f} GB/s read"


def agent_table(result: Mapping[str, Any]) -> str:
    """Markdown: one line an engine with medians of its rounds, and our wall time against the faster peer's."""
    runs = result["runs"]
    seen = [name for name in ENGINES if any(name in run for run in runs)]
    lines = ["| | wall time, s | TTFT P50, s | TTFT P90, s | cached of ideal |", "|---|---|---|---|---|"]
    walls = {}
    for name in seen:
        found = [run[name] for run in runs if name in run]
        wall, p50, p90, cached, ideal = (statistics.median(run[key] for run in found) for key in AGENT_KEYS)
        walls[name] = wall
        lines.append(
            f"| {ENGINES[name].label} | {wall:.1f} | {p50 / 1000:.2f} | {p90 / 1000:.2f} | "
            f"{cached:,.0f} of {ideal:,.0f} ({cached / ideal:.1%}) |"
        )
    for ours in (name for name in seen if ENGINES[name].rivals):
        peers = [name for name in ENGINES[ours].rivals[0] if name in walls]
        if peers:
            best = min(peers, key=lambda name: walls[name])
            shared = [run[best]["duration"] / run[ours]["duration"] for run in runs if ours in run and best in run]
            ratio = f"{statistics.median(shared):.2f}x" if shared else ""
            lines.append(f"| {ENGINES[best].label} over {ENGINES[ours].label} | **{ratio}** | | | |")
    return "\n".join(lines) + "\n"


def agent_report(result: Mapping[str, Any]) -> str:
    """The page beside the JSON file."""
    machine, runs = result["machine"], result["runs"]
    names = sorted({f"{ENGINES[name].label}: {run[name]['name']}" for run in runs for name in run})
    lines = [
        f"# Agents on Statemark and its peers, {result['date']}",
        "",
        agent_table(result),
        f"Three sessions of four turns with {_agent_input(result):,} prompt tokens, one request at a time, turns of "
        f"the sessions alternating; medians of {len(runs)} round{'s' * (len(runs) > 1)} with servers just started.",
        "",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, {machine['system']}; "
        f"load average before the run {result['load_average']}",
        f"- command: `{result['command']}`",
        *(f"- {name}" for name in names),
    ]
    return "\n".join(lines) + "\n"


def _agent_input(result: Mapping[str, Any]) -> int:
    return max(figures["total_input_tokens"] for run in result["runs"] for figures in run.values())


def quote(document: str, name: str, text: str) -> str:
    """The document with `text` between the two comments of that name."""
    place = re.compile(rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.S)
    changed, count = place.subn(lambda found: f"{found[1]}{text}{found[2]}", document)
    if count != 1:
        raise SystemExit(f"error: {count} places for the table of {name}, expected one")
    return changed


def quotes() -> dict[str, str]:
    """Name of a place in the README -> what stands there."""
    peers = json.loads((RESULTS / "peers.json").read_text())
    machine = peers["machine"]
    where = f"{_rounds(peers)} on {machine['cpu']}, {machine['cores']} cores; limits: {limits_text(peers)}.\n"
    agent = json.loads((RESULTS / "agent.json").read_text())
    return {"peers": f"{table(peers)}\n{where}", "agent": agent_table(agent)}


if __name__ == "__main__":
    readme = ROOT / "README.md"
    text = readme.read_text()
    for name, quoted in quotes().items():
        text = quote(text, name, quoted)
    readme.write_text(text)
