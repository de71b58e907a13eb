"""`statemark replay`: recorded or made-up traffic against live servers, measured as users feel it."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import click

from statemark.cli.talk import Progress, say
from statemark.client import Session
from statemark.errors import ConfigurationError, ServerError
from statemark.replay.drive import Drive, Pace
from statemark.replay.page import draw_page
from statemark.replay.preflight import Arm, expect, prove
from statemark.replay.readers import read_trace
from statemark.replay.records import Record, finished, read_records, record_line, write_line
from statemark.replay.report import figures, lines
from statemark.replay.synthetic import Agent, agent_sessions
from statemark.replay.workload import SessionPlan, Vocabulary, fitted
from statemark.words import counted

_EXAMPLES = """\b
Examples:
  statemark replay ./traces/coding_agent --target http://127.0.0.1:8000 --sessions 4 --think-cap 2
  statemark replay --synthetic agent --target http://127.0.0.1:8000 --target http://127.0.0.1:8001 --rounds 3
  statemark replay trace.jsonl --target http://127.0.0.1:8000 --out run.jsonl --resume --page run.html
"""
_FILE = click.Path(path_type=Path, dir_okay=False)


class _Keeper:
    """Holds the records, and writes each to the file the moment that it is made."""

    def __init__(self, out: Path | None, head: dict[str, Any], resume: bool, progress: Callable[[int], None]) -> None:
        self.records: list[Record] = []
        self._file: TextIO | None = None
        self._progress = progress
        if out is None:
            return
        if out.exists() and out.stat().st_size:
            if not resume:
                raise ConfigurationError(f"{out} exists", hint="name another file, or go on from it with --resume")
            known, records = read_records(out)
            if known != head:
                raise ConfigurationError(
                    f"{out} is the record of another run", hint="give the options that it was begun with"
                )
            done = finished(records)  # of a session that was cut off every request is sent again
            self.records = [r for r in records if (r.target, r.round, r.session) in done]
        fresh = out.with_name(out.name + ".part")  # so that a kill in between loses nothing
        fresh.write_text(write_line({"head": head}) + "".join(map(record_line, self.records)), encoding="utf-8")
        fresh.replace(out)
        self._file = out.open("a", encoding="utf-8")

    def __call__(self, record: Record) -> None:
        self.records.append(record)
        if self._file is not None:
            self._file.write(record_line(record))
            self._file.flush()
        self._progress(len(self.records))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


@click.command(epilog=_EXAMPLES)
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@click.option("--target", "targets", multiple=True, metavar="URL", help="Server to ask; several take turns.")
@click.option("--synthetic", type=click.Choice(["agent"]), help="Made-up sessions in place of a trace.")
@click.option(
    "--agent", metavar="NAME=N,...", default="", help="Sizes of --synthetic agent, such as turns=6,shared=9000."
)
@click.option(
    "--compare",
    "earlier",
    multiple=True,
    metavar="[NAME=]FILE,...",
    help="A run that --out has kept, or several: one of each start of a server.",
)
@click.option("--model", metavar="NAME", help="Model to ask.  [default: the only one served]")
@click.option("--api-key", envvar="STATEMARK_REPLAY_KEY", show_envvar=True, help="Key to send to the servers.")
@click.option("--expect", "wanted", metavar="TEXT", help="Stop unless each server's name or fingerprint has this.")
@click.option("--sessions", type=click.IntRange(min=1), help="Replay the first so many sessions only.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, help="Sessions at once.")
@click.option("--think-scale", type=click.FloatRange(min=0), default=1.0, help="Multiply think times.")
@click.option("--think-cap", type=click.FloatRange(min=0), default=10.0, help="Longest think time in seconds.")
@click.option("--open-loop", is_flag=True, help="Start sessions when the trace says, as far as lanes are free.")
@click.option("--warm-up", type=click.IntRange(min=0), default=0, help="Sessions at the start that don't count.")
@click.option("--duration", type=click.FloatRange(min=0.1), help="Seconds after which nothing new is sent.")
@click.option("--grace", type=click.FloatRange(min=0), default=30.0, help="Seconds that answers then get to finish.")
@click.option("--max-output", type=click.IntRange(min=1), help="Shorten answers to so many tokens.")
@click.option("--salts", type=click.Choice(["none", "lane", "session"]), default="none", help="Who shares prefixes.")
@click.option("--beyond-end-of-turn", is_flag=True, help="Force every answer to its recorded length; marks the result.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, help="Repeat, each time with other salts.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Same seed, same prompts.")
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, help="Seconds without a byte from a server.")
@click.option("--out", type=_FILE, metavar="FILE", help="Keep each request as a line of JSON.")
@click.option("--resume", is_flag=True, help="Go on from what --out has kept; whole sessions are left out.")
@click.option("--page", type=_FILE, metavar="FILE", help="Also write a page of HTML with plots.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
def command(
    trace: Path | None,
    targets: tuple[str, ...],
    synthetic: str | None,
    agent: str,
    earlier: tuple[str, ...],
    model: str | None,
    api_key: str | None,
    wanted: str | None,
    sessions: int | None,
    max_output: int | None,
    rounds: int,
    seed: int,
    timeout: float,
    out: Path | None,
    resume: bool,
    page: Path | None,
    as_json: bool,
    **pace: Any,
) -> int:
    """Replay TRACE against live servers and report what their users would feel.

    TRACE is a folder of coding-agent sessions, Mooncake's JSON lines, a log of OpenAI request bodies, or what `record`
    writes. Prompts keep who shares which prefix; their tokens are random. Answers end at their end of turn.
    """
    if not targets and not earlier:
        raise ConfigurationError("there is nothing to ask", hint="give --target URL, or --compare FILE twice")
    if resume and out is None:
        raise ConfigurationError("--resume has nothing to go on from", hint="name the run's file with --out")
    runs: dict[str, list[Record]] = {}
    for spec in earlier:
        _read_earlier(spec, runs)
    head: dict[str, Any] = {}
    failed = False
    if targets:
        plans = _plans(trace, synthetic, agent, seed, sessions)[:sessions]
        settings = _pace(pace)
        head = {"trace": str(trace) if trace else f"synthetic {synthetic} {agent}".strip(), "targets": list(targets),
                "sessions": len(plans), "rounds": rounds, "seed": seed, "max_output": max_output,
                "beyond_end_of_turn": settings.beyond_eos, "pace": vars(settings)}  # fmt: skip
        records, arms, failed = asyncio.run(
            _run(plans, settings, targets, head, out=out, resume=resume, rounds=rounds, seed=seed, model=model,
                 api_key=api_key, timeout=timeout, wanted=wanted, max_output=max_output)
        )  # fmt: skip
        head = {**head, "arms": [arm.figures() for arm in arms]}
        for i, arm in enumerate(arms):
            name = arm.name if [a.name for a in arms].count(arm.name) == 1 else f"{arm.name} #{i + 1}"
            runs[name] = [r for r in records if r.target == targets[i]]
    data = figures(head, runs)
    if page is not None:
        page.write_text(draw_page(data, runs), encoding="utf-8")
        say(f"page written to {page}")
    if as_json:
        click.echo(json.dumps(data, sort_keys=True))
    else:
        for line in lines(data):
            click.echo(line)
    nothing = bool(targets) and not any(r.good for records in runs.values() for r in records)
    return 1 if failed or nothing else 0


def _read_earlier(spec: str, runs: dict[str, list[Record]]) -> None:
    """Adds the records of [NAME=]FILE,...: a start of the arm from each file. A run of several targets is several arms;
    else each start may have had an address of its own."""
    head, given, rest = spec.partition("=")
    named = given and not Path(spec).exists()
    paths = [Path(part) for part in (rest if named else spec).split(",")]
    name = head if named else paths[0].stem
    found = [[replace(r, start=i) for r in read_records(path)[1]] for i, path in enumerate(paths, 1)]
    whole = [r for records in found for r in records]
    if all(len({r.target for r in records}) < 2 for records in found):
        runs[name] = whole
    else:
        for target in sorted({r.target for r in whole}):
            runs[f"{name} {target}"] = [r for r in whole if r.target == target]


def _pace(values: dict[str, Any]) -> Pace:
    return Pace(
        concurrency=values["concurrency"],
        scale=values["think_scale"],
        cap=values["think_cap"],
        open_loop=values["open_loop"],
        duration=values["duration"],
        grace=values["grace"],
        warm_up=values["warm_up"],
        salts=values["salts"],
        beyond_eos=values["beyond_end_of_turn"],
    )


def _plans(trace: Path | None, synthetic: str | None, agent: str, seed: int, most: int | None) -> list[SessionPlan]:
    if (trace is None) == (synthetic is None):
        raise ConfigurationError("give either a TRACE or --synthetic agent")
    if trace is not None:
        plans, notes = read_trace(trace, most)
        for note in notes:
            say(f"note: {note}")
        return plans
    sizes: dict[str, Any] = {}
    for part in filter(None, agent.split(",")):
        name, _, value = part.partition("=")
        kinds = {"think": float}
        try:
            if name not in Agent.__dataclass_fields__:
                raise ValueError
            sizes[name] = kinds.get(name, int)(value)
            if sizes[name] < (0 if name in ("think", "reasoning", "header", "shared") else 1):
                raise ValueError
        except ValueError:
            raise ConfigurationError(
                f"--agent {part!r} is no size", hint=f"there are {', '.join(Agent.__dataclass_fields__)}, as turns=6"
            ) from None
    return agent_sessions(Agent(**sizes), seed)


async def _run(
    plans: list[SessionPlan],
    pace: Pace,
    targets: tuple[str, ...],
    head: dict[str, Any],
    *,
    out: Path | None,
    resume: bool,
    rounds: int,
    seed: int,
    model: str | None,
    api_key: str | None,
    timeout: float,
    wanted: str | None,
    max_output: int | None,
) -> tuple[list[Record], list[Arm], bool]:
    sessions = [Session(url, api_key=api_key, timeout=timeout) for url in targets]
    progress = Progress()
    total = rounds * len(targets) * sum(len(p.turns) for p in plans)
    keeper: _Keeper | None = None
    changed = False
    try:
        arms = [await prove(session, model) for session in sessions]
        for arm in arms:
            expect(arm, wanted)
            say(f"{arm.url} is {arm.name}, model {arm.model}, {arm.fingerprint or 'no fingerprint'}")
        longest = min((s.target.max_model_len or 1 << 30) for s in sessions)
        kept, dropped = fitted(plans, longest - 1, max_output)
        if dropped:
            say(f"note: left out, since a context of {longest:,} tokens can't hold them: {counted(dropped, 'request')}")
        if not kept:
            raise ConfigurationError(f"no request fits a context of {longest:,} tokens")
        keeper = _Keeper(out, head, resume, lambda done: progress("replay", done, total))
        vocabularies = [Vocabulary(await _pool(s), seed) for s in sessions]
        done = finished(keeper.records)
        for number in range(1, rounds + 1):
            order = [(i + number - 1) % len(targets) for i in range(len(targets))]  # nobody is always first
            for i in order:
                rest = [p for p in kept if (targets[i], number, p.name) not in done]
                ends = [r.at + r.seconds for r in keeper.records if (r.target, r.round) == (targets[i], number)]
                drive = Drive(
                    sessions[i], vocabularies[i], pace, target=targets[i], number=number,
                    run=secrets.token_hex(8), note=keeper, after=max(ends, default=0.0),
                )  # fmt: skip
                await drive.run(rest)
        for session, before in zip(sessions, arms, strict=True):
            try:
                after = await prove(session, before.model)
            except ServerError as error:
                say(f"note: after the run: {error.message}")
                changed = True
                continue
            if after != before:
                say(f"note: {before.url} is not who it was before the run: {after.name}, {after.fingerprint}")
                changed = True
        return keeper.records, arms, changed
    finally:
        progress.clear()
        if keeper is not None:
            keeper.close()
        for session in sessions:
            await session.close()


async def _pool(session: Session) -> list[int]:
    """Token ids that this server's tokenizer makes of random words."""
    from statemark.client.sample import sample_texts

    ids: list[int] = []
    for text in sample_texts(0):
        ids += await session.tokenize(text) or []
    if not ids:
        raise ServerError("protocol", f"{session.url} tokenizes for nobody", hint="it can't be sent token ids")
    return ids
