"""A comparison's result as plain data, and the table that documents quote. Measures nothing.

python benchmarks/peers/results.py        # puts the table of benchmarks/results/peers.json into README.md
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS = "statemark"
ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "peers.json"
QUOTE = re.compile(r"(<!-- peers: begin -->\n).*?(<!-- peers: end -->)", re.S)


def summarise(runs: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """From cell -> engine -> tokens a second of each round to medians, and our ratio to the better peer.

    The ratio is the median of the rounds' own ratios: what slowed a whole round down drops out of it.
    """
    cells: dict[str, Any] = {}
    for cell, engines in runs.items():
        medians = {engine: round(statistics.median(rates), 2) for engine, rates in engines.items() if rates}
        entry: dict[str, Any] = {
            engine: {"median": medians[engine], "low": round(min(rates), 2), "high": round(max(rates), 2),
                     "rounds": [round(rate, 2) for rate in rates]}
            for engine, rates in engines.items() if rates
        }  # fmt: skip
        peers = {engine: median for engine, median in medians.items() if engine != OURS}
        if peers and OURS in medians:
            best = max(peers, key=lambda engine: peers[engine])
            ratios = [ours / theirs for ours, theirs in zip(engines[OURS], engines[best], strict=True)]
            entry["best_peer"] = best
            entry["ratio_to_best_peer"] = round(statistics.median(ratios), 2)
        cells[cell] = entry
    return cells


def table(result: Mapping[str, Any]) -> str:
    """Markdown: one line an engine, one column a cell, our ratio to the better peer last."""
    cells = result["cells"]
    names = sorted(cells, key=_place)
    lines = ["| tok/s | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    engines = result["engines"]
    for engine in sorted(engines, key=lambda name: (name != OURS, name)):
        values = [_value(cells[name].get(engine)) for name in names]
        lines.append(f"| {engines[engine]['label']} | " + " | ".join(values) + " |")
    if any("ratio_to_best_peer" in cells[name] for name in names):
        ratios = [
            f"{cells[name]['ratio_to_best_peer']:.2f}x" if "ratio_to_best_peer" in cells[name] else "" for name in names
        ]
        lines.append("| Statemark to the faster peer | " + " | ".join(ratios) + " |")
    return "\n".join(lines) + "\n"


def _value(figures: Mapping[str, Any] | None) -> str:
    if figures is None:
        return ""
    median = figures["median"]
    return f"{median:.0f}" if median >= 100 else f"{median:.1f}"


def _place(cell: str) -> tuple[bool, int]:
    """Prefill before decode, small numbers before large ones."""
    return not cell.startswith("prefill"), int(re.findall(r"\d+", cell)[0])


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def report(result: Mapping[str, Any]) -> str:
    """The page beside the JSON file: the table, and all that is needed to repeat it."""
    machine, model = result["machine"], result["model"]
    lines = [
        f"# Statemark and its peers, {result['date']}",
        "",
        table(result),
        f"Medians of {result['rounds']} rounds, engines taking turns in each, all warm; higher is better.",
        "",
        f"- machine: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:.0f} GiB, {machine['system']}; "
        f"load average before the run {result['load_average']}",
        f"- limits measured in the same run: {result['limits']}",
        f"- model: {model['name']}, random weights, {model['bytes'] / 1e9:.2f} GB in bfloat16",
        f"- command: `{result['command']}`",
    ]
    lines += [f"- {facts['label']}: " + ", ".join(f"{k} {v}" for k, v in facts.items() if k != "label")
              for facts in result["engines"].values()]  # fmt: skip
    lines += [f"- note: {note}" for note in result["notes"]]
    return "\n".join(lines) + "\n"


def quote(document: str, result: Mapping[str, Any]) -> str:
    """The document with the result's table, and what it was measured on, between its two comments."""
    machine, limits = result["machine"], result["limits"]
    where = f"Medians of {result['rounds']} rounds on {machine['cpu']}, {machine['cores']} cores; limits: {limits}.\n"
    changed, count = QUOTE.subn(lambda found: f"{found[1]}{table(result)}\n{where}{found[2]}", document)
    if count != 1:
        raise SystemExit(f"error: {count} places for the table of peers, expected one")
    return changed


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(quote(readme.read_text(), json.loads(RESULT.read_text())))
