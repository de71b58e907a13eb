"""`statemark probe`: does a live server's prefix cache change its answers?"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from pathlib import Path

import click

from statemark import __version__
from statemark.cli.talk import Progress, say
from statemark.client import Session
from statemark.errors import ConfigurationError, ServerError
from statemark.probe.bench import Bench
from statemark.probe.page import draw_page
from statemark.probe.plan import Options, cost_words, estimate
from statemark.probe.report import figures, lines
from statemark.probe.run import Memory, Probe, Result
from statemark.words import counted

_EXAMPLES = """\b
Examples:
  statemark probe http://127.0.0.1:8000
  statemark probe http://127.0.0.1:8000 --model NAME --limit 8192 --page probe.html
  statemark probe http://127.0.0.1:8000 --json --resume probe.jsonl

\b
Exit codes: 0 exact, 3 drift, 4 contaminated, 5 invalid; 2 for what you can change.
"""


@click.command(epilog=_EXAMPLES)
@click.argument("url")
@click.option("--model", metavar="NAME", help="Model to ask.  [default: the only one served]")
@click.option("--api-key", envvar="STATEMARK_PROBE_KEY", show_envvar=True, help="Key to send to the server.")
@click.option("--document", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
              help="Text or JSON list of token ids to cut prompts from.  [default: random ones]")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=256), help="Longest prompt in tokens.  [default: 4096, if it fits]")
@click.option(
    "--boundaries",
    type=click.IntRange(min=0),
    default=3,
    help="So many block boundaries, and the last, from both sides.",
)
@click.option("--max-tokens", type=click.IntRange(1, 512), default=8, help="Tokens of an answer at most.")
@click.option("--mates/--no-mates", default=True, help="Also measure among other requests.")
@click.option("--beyond-end-of-turn", is_flag=True, help="Force tokens past the end of turn; marks the result.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Same seed, same documents, where salts exist.")
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, help="Seconds without a byte from the server.")
@click.option("--resume", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Keep what is measured in FILE, and go on from it.")  # fmt: skip
@click.option(
    "--page", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write a page of HTML."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    url: str,
    model: str | None,
    api_key: str | None,
    document: Path | None,
    limit: int | None,
    boundaries: int,
    max_tokens: int,
    mates: bool,
    beyond_end_of_turn: bool,
    seed: int,
    timeout: float,
    resume: Path | None,
    page: Path | None,
    as_json: bool,
) -> int:
    """Ask the server at URL whether its answers depend on its prefix cache.

    Sends prompts cold and after others that share their beginning, alone and in company, and compares the 20 likeliest
    tokens' log-probabilities at every place, never text. Knows vLLM, SGLang, llama-server and Statemark. Use an idle
    server: other traffic makes cells invalid at best.
    """
    own = _document(document)

    async def go() -> Result:
        async with Session(url, api_key=api_key, timeout=timeout) as session:
            target = await session.find(model)
            longest = (target.max_model_len or 1 << 30) - max_tokens - 128
            options = Options(
                limit=limit or min(4096, longest),
                boundaries=boundaries,
                max_tokens=max_tokens,
                beyond_eos=beyond_end_of_turn,
                seed=seed,
                mates=mates,
            )
            if not 256 <= options.limit <= longest:
                raise ConfigurationError(
                    f"prompts of {options.limit:,} tokens don't fit: the server takes {longest:,} beside the answer",
                    hint="lower --limit; below 256 there is nothing to see",
                )
            expected = await estimate(options)
            say(f"{target.name}, model {target.model}")
            say(f"{cost_words(expected)} if blocks are short; more exactly once they are known")
            head = {"statemark": __version__, "url": target.url, "model": target.model, "make": target.make,
                    "version": target.version, "own": len(own), **options.figures()}  # fmt: skip
            memory = Memory(resume, head)
            bench = Bench(session, max_tokens=max_tokens, beyond_eos=beyond_end_of_turn, run=secrets.token_hex(8))
            progress = Progress()
            start = time.monotonic()
            try:
                result = await Probe(
                    bench, options, expected, own=own, memory=memory, progress=progress, tell=say
                ).run()
            except ServerError:
                if resume is not None:
                    say(f"{counted(len(memory.cells), 'cell')} kept in {resume}: the same command goes on from there")
                raise
            finally:
                progress.clear()
                memory.close()
            say(f"took {time.monotonic() - start:.0f} s")
            return result

    result = asyncio.run(go())
    if page is not None:
        page.write_text(draw_page(result), encoding="utf-8")
        say(f"page written to {page}")
    if as_json:
        click.echo(json.dumps(figures(result), sort_keys=True))
    else:
        for line in lines(result):
            click.echo(line)
    return result.verdict.exit_code


def _document(path: Path | None) -> str | list[int]:
    if path is None:
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    if not text.strip():
        raise ConfigurationError(f"{path} is empty", hint="give a text, or a JSON list of token ids")
    try:
        data = json.loads(text)
    except ValueError:
        return text
    if isinstance(data, list) and all(isinstance(i, int) and i >= 0 for i in data):
        return data
    return text
