"""Loading, faults, backpressure, clients that leave, and the end: nothing hangs and nobody else is hurt."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

from statemark.errors import CheckpointError
from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, eventually, running

ENDLESS = {"prompt": "abc", "max_tokens": 4000, "stream": True}


def complete(url: str, **fields: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/completions", json={"prompt": "abc", "max_tokens": 2} | fields, timeout=30)


def test_health_and_version_while_loading_and_after() -> None:
    gate = threading.Event()

    def load() -> FakeModel:
        gate.wait(30)
        return FakeModel()

    with running(load, wait=False) as found:
        response = httpx.get(f"{found.url}/health")
        assert (response.status_code, response.json()) == (503, {"status": "loading"})
        assert httpx.get(f"{found.url}/version").status_code == 200
        for refused in (complete(found.url), httpx.get(f"{found.url}/v1/models")):
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "not_ready"
            assert refused.headers["retry-after"]
        gate.set()
        eventually(lambda: httpx.get(f"{found.url}/health").status_code == 200)
        assert complete(found.url).status_code == 200


def test_a_model_that_can_not_be_loaded_ends_the_server_with_its_error() -> None:
    def load() -> FakeModel:
        raise CheckpointError("no weights", hint="look again")

    with running(load, wait=False) as found:
        eventually(lambda: not found.thread.is_alive())
        assert isinstance(found.server.failure, CheckpointError)


def test_a_step_that_raises_ends_its_requests_and_nothing_else() -> None:
    with running(FakeModel) as found:
        response = complete(found.url, prompt="!boom")
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_error"
        assert complete(found.url).status_code == 200
        client = openai.OpenAI(base_url=f"{found.url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="planted fault"):
            list(client.completions.create(model="fake", prompt="!boom", stream=True))
        assert complete(found.url).status_code == 200
        eventually(lambda: found.state.engine.held == 0)


def test_a_request_that_fails_leaves_its_batch_mates_alone() -> None:
    model = FakeModel()
    with running(lambda: model) as found, httpx.stream("POST", f"{found.url}/v1/completions", json=ENDLESS) as mate:
        lines = mate.iter_lines()
        assert next(lines).startswith("data: ")
        failed = complete(found.url, prompt="!fail")
        assert (failed.status_code, "planted failure" in failed.text) == (500, True)
        assert complete(found.url, prompt="!refuse").status_code == 500
        last = [line for line in lines if line.startswith("data: ")][-2:]
        assert '"finish_reason":"length"' in last[0]
        assert last[1] == "data: [DONE]"


def test_one_bad_prompt_of_several_refuses_all_and_aborts_the_accepted() -> None:
    model = FakeModel()
    model.max_model_len = 10**9
    model.gate.clear()  # else the accepted one may be done before it is aborted
    with running(lambda: model) as found:
        assert complete(found.url, prompt=["a", "!refuse"], max_tokens=4000).status_code == 500
        eventually(lambda: found.state.engine.held == 0 and len(model.aborted) == 1)
        model.gate.set()
        assert complete(found.url).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("started", [True, False], ids=["while generating", "before the first token"])
def test_a_client_that_leaves_stops_the_work_at_once(stream: bool, started: bool) -> None:
    model = FakeModel()
    model.max_model_len = 10**9
    if not started:
        model.gate.clear()
    with running(lambda: model) as found:
        body = {"prompt": "abc", "max_tokens": 10**8, "stream": stream, "n": 2}
        request = httpx.Request("POST", f"{found.url}/v1/completions", json=body)
        host, port = found.url.removeprefix("http://").split(":")
        with contextlib.closing(socket.create_connection((host, int(port)))) as wire:
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            wire.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            eventually(lambda: len(model.seen) == 1)
            if started:
                eventually(lambda: any(model.written.values()))
            eventually(lambda: found.state.engine.held == 2)
        eventually(lambda: found.state.engine.held == 0 and len(model.aborted) == 1)
        model.gate.set()
        eventually(lambda: not model.requests)
        assert complete(found.url).status_code == 200


def test_a_full_queue_is_429_with_retry_after_and_empties_again() -> None:
    model = FakeModel()
    model.max_num_seqs = 1
    model.gate.clear()
    with running(lambda: model, settings=Settings(port=0, max_waiting=2)) as found:
        codes: list[int] = []

        def ask() -> None:
            codes.append(complete(found.url, n=1).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(model.seen) == 3)
        refused = complete(found.url)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        too_many = complete(found.url, n=4)
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")
        model.gate.set()
        for thread in threads:
            thread.join(30)
        assert codes == [200, 200, 200]
        assert complete(found.url).status_code == 200


def test_shutdown_lets_short_answers_finish() -> None:
    model = FakeModel()
    model.gate.clear()
    with running(lambda: model, settings=Settings(port=0, shutdown_grace=30)) as found:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(complete(found.url)))
        thread.start()
        eventually(lambda: len(model.seen) == 1)
        found.server.should_exit = True
        eventually(lambda: found.state.engine.draining)
        late = complete(found.url)
        assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
        assert httpx.get(f"{found.url}/health").json() == {"status": "draining"}
        model.gate.set()
        thread.join(30)
        assert [a.status_code for a in answers] == [200]


def test_shutdown_cuts_long_streams_with_an_error_frame() -> None:
    model = FakeModel()
    model.max_model_len = 10**9
    with running(lambda: model, settings=Settings(port=0, shutdown_grace=0)) as found:
        body = ENDLESS | {"max_tokens": 10**8}
        with httpx.stream("POST", f"{found.url}/v1/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            found.server.should_exit = True
            frames = [line for line in lines if line]
        assert "shutting_down" in frames[-2]
        assert frames[-1] == "data: [DONE]"
        eventually(lambda: model.aborted == [model.seen[0].request_id])


def test_a_port_in_use_is_a_clear_error(served: Running) -> None:
    from statemark.errors import ConfigurationError
    from statemark.server.run import bind

    port = int(served.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigurationError, match=f"can't listen on 127.0.0.1:{port}"):
        bind(Settings(port=port))
    for wrong in (Settings(port=70000), Settings(host="no.such.host.invalid")):
        with pytest.raises(ConfigurationError):
            bind(wrong)


def test_idle_connections_outlive_those_of_clients_and_proxies(served: Running) -> None:
    """uvicorn's default of 5 s is httpx's too: whoever asks again after just that time may find the door closing."""
    with httpx.Client() as client:
        assert client.get(f"{served.url}/health").status_code == 200
        open_now = list(served.server.server_state.connections)
        assert open_now
        assert min(connection.timeout_keep_alive for connection in open_now) > 90  # type: ignore[union-attr]
