"""The report of `statemark check`: resolved geometry, what a step advances, what states cost, then findings.

Turns results into lines of text or into one JSON object; computes nothing that the findings don't.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from statemark.align.configuration import GIB, Setup
from statemark.align.findings import Finding
from statemark.align.findings.budget import advance
from statemark.align.findings.reach import minimum_prompt, minimum_shared
from statemark.align.groups import Group, Role

WIDTH = 100
_LABEL = 22


def as_json(setup: Setup, findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything that the text says, for machines. Equal configurations give equal objects."""
    geometry, frame, pace = setup.geometry, setup.frame, advance(setup)
    return {
        "model": {
            "name": setup.name,
            "family": setup.shape.family,
            "architecture": setup.shape.architecture,
            "attention_layers": setup.shape.attention_layers,
            "recurrent_layers": setup.shape.recurrent_layers,
            "max_model_len": geometry.max_model_len,
        },
        "platform": {"name": setup.machine.name, "assumed": setup.machine.assumed, "usage": setup.usage.value},
        "prefix_cache": geometry.caching,
        "groups": [_group(g) for g in geometry.groups],
        "units": {
            "state_grid": frame.grid.tokens,
            "config_minimum": frame.config_minimum.tokens,
            "scheduler_block": frame.scheduler_block.tokens,
            "hash_unit": frame.hash_unit.tokens,
            "hit_unit": frame.hit_unit.tokens,
            "kernel_chunk": frame.kernel_chunk.tokens,
        },
        "step": {
            "budget": setup.budget.tokens,
            "budget_is_default": setup.budget.defaulted,
            "requests": setup.budget.requests,
            "draft_slots": frame.draft_slots,
            "tokens_of_a_long_prompt": round(pace.tokens, 1),
            "idle_share": round(pace.idle, 4),
        },
        "reach": {"minimum_shared_prefix": minimum_shared(setup), "minimum_prompt": minimum_prompt(setup)},
        "states": {
            "bytes": geometry.state_bytes,
            "bytes_kept": geometry.kept_state_bytes,
            "fixed_bytes_of_a_request": geometry.fixed_bytes,
            "fixed_blocks_of_a_request": geometry.fixed_blocks,
            "bytes_per_block": geometry.bytes_per_block,
            "memory": setup.memory,
            "memory_is_estimate": setup.memory is not None and not setup.memory_known,
            "blocks": setup.blocks,
            "states_that_fit": states_that_fit(setup),
        },
        "findings": [f.as_json() for f in findings],
        "notes": list(setup.notes),
    }


def states_that_fit(setup: Setup) -> int | None:
    """Kept states that an otherwise empty pool holds."""
    each = sum(g.copies for g in setup.geometry.state_groups)
    return None if setup.blocks is None else setup.blocks // each


def _group(group: Group) -> dict[str, Any]:
    return {
        "role": group.role.value,
        "label": group.label,
        "block": group.unit.tokens,
        "groups": group.copies,
        "layers": group.layers,
        "page_bytes": group.page_bytes,
        "content_bytes": group.content_bytes,
        "cacheable": group.cacheable,
        "window": group.window,
        "gives_back_a_block": group.dropped,
    }


def as_text(setup: Setup, findings: Sequence[Finding]) -> str:
    return "\n".join(_lines(setup, findings)) + "\n"


def _lines(setup: Setup, findings: Sequence[Finding]) -> Iterator[str]:
    shape = setup.shape
    layers = f"{shape.attention_layers} attention and {shape.recurrent_layers} recurrent layers"
    yield f"{setup.name}: {shape.family}, {layers}"
    assumed = " (assumed, --gpu names another)" if setup.machine.assumed else ""
    yield _row("runs on", f"{setup.machine.name}{assumed}, vLLM 0.32, {setup.usage.value}")
    yield ""
    yield from _geometry_lines(setup)
    yield ""
    yield from _step_lines(setup)
    yield ""
    yield from _state_lines(setup)
    for note in (*geometry_notes(setup), *setup.notes):
        yield _row("note", note)
    yield ""
    yield from _finding_lines(findings)


def _geometry_lines(setup: Setup) -> Iterator[str]:
    frame = setup.frame
    if not setup.geometry.caching:
        yield _row("prefix cache", "off")
    for group in setup.geometry.groups:
        plural = f"{group.copies} x {group.layers}" if group.copies > 1 else f"{group.layers}"
        padding = f", {100 * group.padding:.0f} % padding" if group.padding > 0.005 else ""
        extra = f", window {group.window:,}" if group.window else ""
        if group.role is Role.RING:
            yield _row(f"{group.role.value} block", f"{group.unit} tokens ({group.label}; never cached)")
            continue
        size = f", {_bytes(group.page_bytes)} a page{padding}" if group.page_bytes > group.unit.tokens else ""
        yield _row(f"{group.role.value} block", f"{group.unit} tokens ({group.label}, {plural} layers{size}{extra})")
    same = frame.config_minimum.tokens == frame.grid.tokens == frame.scheduler_block.tokens == frame.hit_unit.tokens
    if same:
        yield _row("all units", f"{frame.grid} tokens: state grid, cut, hash and hits agree")
        return
    yield _row("state grid", f"{frame.grid} tokens, where states can be kept")
    yield _row("cut on", f"{frame.config_minimum} tokens, the smallest block of any group")
    yield _row("common multiple", f"{frame.scheduler_block} tokens")
    yield _row("hashes, hits", f"every {frame.hash_unit} tokens, hits end on multiples of {frame.hit_unit}")


def _step_lines(setup: Setup) -> Iterator[str]:
    budget, pace, frame = setup.budget, advance(setup), setup.frame
    source = f"default for {setup.machine.name}, {setup.usage.value}" if budget.defaulted else "as given"
    yield _row("tokens a step", f"{budget.tokens:,} ({source}), at most {budget.requests:,} requests")
    if setup.geometry.caching:
        yield _row("a long prompt", f"advances {pace.tokens:,.0f} of them a step, {pace.idle:.0%} idle")
        yield _row("shortest reuse", f"a shared prefix of {minimum_shared(setup):,} tokens")
    if frame.draft_slots or setup.geometry.drafting.depth:
        drafting = setup.geometry.drafting
        drop = "a hit gives back a block" if drafting.block_drop else "hits are kept whole"
        yield _row("drafts", f"{drafting.method}, {drafting.depth} tokens, {drafting.slots} slots; {drop}")


def _state_lines(setup: Setup) -> Iterator[str]:
    geometry = setup.geometry
    yield _row(
        "a state", f"{_bytes(geometry.state_bytes)}; kept in the cache it takes {_bytes(geometry.kept_state_bytes)}"
    )
    yield _row("a request", f"holds {geometry.fixed_blocks} blocks ({_bytes(geometry.fixed_bytes)}) besides its tokens")
    if setup.memory is None:
        yield _row("states that fit", "unknown: give --kv-cache-memory-bytes, or a folder with weights and --gpu")
        return
    guess = "" if setup.memory_known else "about "
    fit = states_that_fit(setup)
    yield _row(
        "states that fit",
        f"{guess}{fit:,} in {guess}{_bytes(setup.memory)}, if nothing else is there; "
        f"{geometry.concurrency(setup.memory, setup.in_flight):.2f} requests of {geometry.max_model_len:,} tokens",
    )


def geometry_notes(setup: Setup) -> tuple[str, ...]:
    if setup.geometry.caching and setup.frame.retention == 0:
        return (
            "states are kept at replay points and shared-prefix junctions only (retention interval 0, the default)",
        )
    return ()


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "No findings."
        return
    counts = {level: sum(f.level.value == level for f in findings) for level in ("error", "warning", "info")}
    yield "Findings: " + ", ".join(
        f"{n} {level}{'s' if n > 1 and level != 'info' else ''}" for level, n in counts.items() if n
    )
    for finding in findings:
        yield ""
        yield f"{finding.level.value}: {finding.code}"
        yield from textwrap.wrap(finding.sentence, WIDTH, initial_indent="  ", subsequent_indent="  ")
        yield from textwrap.wrap(
            f"change: {finding.remedy}", WIDTH, initial_indent="  ", subsequent_indent="          "
        )


def _row(label: str, value: str) -> str:
    first, *rest = textwrap.wrap(value, WIDTH - _LABEL) or [""]
    return "\n".join([f"  {label:<{_LABEL - 2}}{first}", *(" " * _LABEL + line for line in rest)])


def _bytes(count: int) -> str:
    if count >= GIB:
        return f"{count / GIB:.2f} GiB"
    return f"{count / (1 << 20):.2f} MiB" if count >= 1 << 20 else f"{count / 1024:.1f} KiB"
