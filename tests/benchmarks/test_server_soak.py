"""The soak script's judgement: what counts as lost and why it was, and memory that is judged with a full cache only."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from tests.server.fake_model import FakeModel
from tests.server.live_server import running

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "server_soak.py"
MIB = 1 << 20


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("server_soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why(script: ModuleType, answer: Any) -> str | None:
    """What becomes of a stream that `answer(request)` gives; seed 0 doesn't leave on purpose."""

    async def ask() -> Any:
        async with httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(answer)) as client:
            return await script.ask(client, random.Random(0))

    return asyncio.run(ask())


def test_a_stream_is_whole_with_its_last_frame_only(script: ModuleType) -> None:
    frame = 'data: {"choices": []}\n\n'
    assert why(script, lambda _: httpx.Response(200, text=f"{frame}data: [DONE]\n\n")) is None
    assert why(script, lambda _: httpx.Response(200, text=frame)) == "ended without its last frame"
    assert why(script, lambda _: httpx.Response(429, text="full")) == "status 429: full"
    text = 'data: {"error": {"message": "no"}}\n\ndata: [DONE]\n\n'
    assert "error frame" in str(why(script, lambda _: httpx.Response(200, text=text)))


def test_a_connection_that_breaks_is_told_with_its_error(script: ModuleType) -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("gone", request=request)

    with pytest.raises(script.UnansweredError, match="RemoteProtocolError after no frames: gone"):
        why(script, broken)


def test_a_connection_that_breaks_within_an_answer_is_lost(script: ModuleType) -> None:
    class Broken(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b'data: {"choices": []}\n\n'
            raise httpx.ReadError("gone")

    told = why(script, lambda _: httpx.Response(200, stream=Broken()))
    assert told == "ReadError after some frames: gone"


def samples(script: ModuleType, *rows: tuple[int, bool]) -> list[Any]:
    return [script.Sample(resident * MIB, full) for resident, full in rows]


def test_memory_is_judged_once_the_cache_is_full(script: ModuleType) -> None:
    filling = [(100, False), (200, False), (300, False)]
    steady = script.judged(samples(script, *filling, *[(300, True)] * 9, (310, True)))
    assert (steady["memory_judged"], steady["memory_grew"]) == (True, False)
    leaking = script.judged(samples(script, *filling, *[(300 + 10 * n, True) for n in range(10)]))
    assert (leaking["memory_judged"], leaking["memory_grew"]) == (True, True)
    never = script.judged(samples(script, *filling))
    assert never == {"memory_judged": False, "memory_most_bytes": 300 * MIB}
    assert script.judged([])["memory_judged"] is False


def test_it_runs_against_a_server(script: ModuleType) -> None:
    with running(FakeModel) as found:
        assert not script.is_full(httpx.get(f"{found.url}/metrics").text)
        result = asyncio.run(script.soak(found.url, os.getpid(), streams=8, seconds=0.5, seed=1))
    assert (result["lost"], result["lost_because"], result["memory_judged"]) == (0, {}, False)
    assert result["whole"] >= 8
