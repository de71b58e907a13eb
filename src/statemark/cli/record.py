"""`statemark record`: a proxy that writes a trace which can be shared."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from statemark.cli.talk import say
from statemark.client import Session
from statemark.errors import ConfigurationError, ServerError
from statemark.words import counted

_EXAMPLES = """\b
Example:
  statemark record --target http://127.0.0.1:8000 --port 8100 --out trace.jsonl
  statemark replay trace.jsonl --target http://127.0.0.1:8000
"""


@click.command(epilog=_EXAMPLES)
@click.option("--target", required=True, metavar="URL", help="Server to pass everything on to.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File to append lines to.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8100, help="Port; 0 takes a free one.")
@click.option(
    "--tokenizer", metavar="FOLDER|ID", help="Model whose tokenizer counts texts.  [default: 4 bytes a token]"
)
@click.option("--salt", envvar="STATEMARK_RECORD_SALT", help="Secret of the digests.  [default: a new one]")
@click.option("--timeout", type=click.FloatRange(min=1), default=600.0, help="Seconds without a byte from the server.")
def command(
    target: str, out: Path, host: str, port: int, tokenizer: str | None, salt: str | None, timeout: float
) -> None:
    """Pass requests on to a server and write down their structure, without their words.

    Each line has a session, times, counts and salted digests of 64-token blocks: who shares which prefix, and nothing
    of what was said. Clients name a conversation with the header x-session-id or the field `user`; else it is told by
    the prompt that the next one extends. Point clients at this port and stop it with Ctrl-C.
    """
    import uvicorn

    from statemark.client.target import base_url
    from statemark.record.proxy import Recorder, build_proxy
    from statemark.server.run import bind
    from statemark.server.state import Settings

    encode: Callable[[str], Sequence[int]] | None = None
    if tokenizer is not None:
        from statemark.models.tokenizer import load_tokenizer

        encode = load_tokenizer(tokenizer).encode
    try:
        file = out.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"can't write {out}: {error.strerror}") from None
    asyncio.run(_check(target))
    with file:
        recorder = Recorder(file, (salt or secrets.token_hex(16)).encode()[:64], encode)
        app = build_proxy(base_url(target), recorder, timeout=timeout)
        listener = bind(Settings(host=host, port=port))
        address, number = listener.getsockname()[:2]
        say(f"recording http://{address}:{number}/v1 -> {base_url(target)}, into {out} (Ctrl-C stops)")
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
        say(f"{counted(recorder.written, 'request')} written, {recorder.skipped} left out")


async def _check(target: str) -> None:
    """ServerError where nobody is there, or nobody who speaks OpenAI's API. A key is the clients' own affair."""
    async with Session(target, timeout=10.0) as session:
        try:
            found = await session.find()
            say(f"{found.name} serves {found.model}")
        except ServerError as error:
            if error.kind in ("down", "protocol", "timeout", "closed"):
                raise
            say(f"note: {error.message}")
