"""Many streams at once over a model without arithmetic: none is lost, all are whole, and nothing stays behind."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import eventually, running


@pytest.mark.parametrize("streams", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_streams_side_by_side_are_all_whole(streams: int) -> None:
    async def one(client: httpx.AsyncClient, n: int) -> str:
        text = f"<{n}>"
        body = {"prompt": text, "max_tokens": 3 * len(text), "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return "".join(httpx.Response(200, text=line[6:]).json()["choices"][0]["text"] for line in lines[:-1])

    async def all_of_them(url: str) -> list[str]:
        limits = httpx.Limits(max_connections=streams)
        async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(one(client, n) for n in range(streams)))

    with running(FakeModel, settings=Settings(port=0, max_waiting=streams)) as found:
        assert asyncio.run(all_of_them(found.url)) == [f"<{n}>" * 3 for n in range(streams)]
        engine = found.state.engine
        eventually(lambda: engine.held == 0 and not engine.jobs and not engine._live)
