"""A connection to one server: finds out who it is, sends requests, and says in clear words what went wrong."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import httpx

from statemark.client.reply import Reply, error_text
from statemark.client.request import Ask, body_of, path_of
from statemark.client.target import Target, base_url, choose_model, context_of, make_of
from statemark.errors import ServerError

_TRIES = 6  # of a request that the server has no room for
_LONGEST_WAIT = 20.0  # seconds between them, whatever the server asks for
_METRIC = re.compile(r"^(?:vllm:prefix_cache_hits_total|sglang:cached_tokens_total)(?:\{[^}]*\})?\s+([0-9.eE+]+)", re.M)
_PLUGIN = re.compile(r'^statemark_vllm_active\{[^}]*rule="(\w+)"[^}]*\}\s+1(?:\.0)?$', re.M)


class Session:
    """Use as an async context manager. `timeout`: seconds without a byte."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url = base_url(url)
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # Servers close idle connections, uvicorn's after 5 s: who sends next must be the one that closes first.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=10.0),
            limits=limits,
            transport=transport,
        )
        self._sleep = sleep
        self.target = Target(url=self.url, model="", make="unknown")

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def find(self, model: str | None = None) -> Target:
        """Ask who is there. ServerError for nobody, for something else, and for a model that isn't served."""
        listing = self._json(await self._send("GET", "/v1/models"))
        card = choose_model(listing, model, self.url)
        make = make_of(card)
        self.target = Target(
            url=self.url,
            model=card["id"],
            make=make,
            version=await self._version(make),
            max_model_len=context_of(card),
        )
        return self.target

    async def _version(self, make: str) -> str:
        path, name = {"llamacpp": ("/props", "build_info"), "sglang": ("/get_server_info", "version")}.get(
            make, ("/version", "version")
        )
        try:
            data = self._json(await self._send("GET", path))
        except ServerError:
            return ""
        return str(data.get(name) or "") if isinstance(data, dict) else ""

    async def hits(self) -> float | None:
        """Tokens that the server's metrics say came from its cache so far; None where they don't say."""
        try:
            response = await self._send("GET", "/metrics")
        except ServerError:
            return None
        found = _METRIC.findall(response.text)
        return sum(map(float, found)) if found else None

    async def plugin(self) -> str:
        """How Statemark's plugin cuts prompts in a vLLM, as its metrics say after the first request; "" without it."""
        try:
            response = await self._send("GET", "/metrics")
        except ServerError:
            return ""
        found = _PLUGIN.search(response.text)
        return f"statemark-plugin-{found[1]}" if found else ""

    async def ask(self, ask: Ask) -> Reply:
        """The whole answer; waits and tries again where the server is full."""
        body = body_of(ask, self.target, stream=False)
        sent = time.perf_counter()
        response = await self._patient(path_of(ask), body)
        reply = Reply(sent=sent, ended=time.perf_counter())
        reply.take(self._object(response), reply.ended)
        return reply

    async def stream(self, ask: Ask, reply: Reply) -> AsyncGenerator[None, None]:
        """Fills `reply` piece by piece and yields after each; an end without [DONE] or a reason is an error."""
        body = body_of(ask, self.target, stream=True)
        reply.sent = time.perf_counter()
        done = False
        try:
            async with self._http.stream("POST", path_of(ask), json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    self._check(response)
                async for line in response.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        done = True
                        break
                    reply.take(_parsed(data), time.perf_counter())
                    yield
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        reply.ended = time.perf_counter()
        if not done and reply.finish is None:
            raise ServerError("closed", f"{self.url} closed the stream before the answer ended")

    async def read(self, ask: Ask) -> Reply:
        """A streamed answer to its end."""
        reply = Reply()
        async for _ in self.stream(ask, reply):
            pass
        return reply

    async def tokenize(self, text: str) -> list[int] | None:
        """Token ids of a text, from whichever way this server has; None where it has none."""
        field = "content" if self.target.make == "llamacpp" else "prompt"
        try:
            data = self._json(await self._send("POST", "/tokenize", {"model": self.target.model, field: text}))
        except ServerError:
            return None
        ids = data.get("tokens") if isinstance(data, dict) else None
        return ids if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else None

    # --- one exchange ---------------------------------------------------------------------------------------

    async def _patient(self, path: str, body: dict[str, Any]) -> httpx.Response:
        for tried in range(1, _TRIES + 1):
            try:
                return await self._send("POST", path, body)
            except ServerError as error:
                if error.kind != "limited" or tried == _TRIES:
                    raise
                await self._sleep(min(_LONGEST_WAIT, error.wait if error.wait is not None else 2.0**tried / 2))
        raise AssertionError("the loop returns or raises")

    async def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            try:
                response = await self._http.request(method, path, json=body)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                response = await self._http.request(method, path, json=body)  # it was just being closed: a fresh one
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except httpx.InvalidURL as error:
            raise ServerError("down", f"{self.url} is no address: {error}", hint="write http://HOST:PORT") from None
        self._check(response)
        return response

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if status < 400:
            return
        try:
            words = error_text(response.json())
        except ValueError:
            words = response.text[:200].strip()
        where = f"{response.request.method} {response.request.url.path}"
        message = f"{self.url} answered {where} with {status}: {words}"
        if status == 401:
            raise ServerError("refused", message, hint="give its key with --api-key")
        if status in (429, 503):
            wait = response.headers.get("retry-after", "")
            seconds = float(wait) if re.fullmatch(r"\d+(\.\d+)?", wait) else None
            raise ServerError("limited", message, hint="it is loading or full: try again later", wait=seconds)
        if status == 404:
            raise ServerError("protocol", message, hint="is this an OpenAI-compatible server?")
        raise ServerError("failed" if status >= 500 else "refused", message)

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        words = f"{type(error).__name__}{f': {error}' if str(error) else ''}"
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)):
            return ServerError("down", f"nobody answers at {self.url}: {words}", hint="is the server running there?")
        if isinstance(error, httpx.TimeoutException):
            return ServerError("timeout", f"{self.url} sent nothing for too long: {words}", hint="raise --timeout")
        return ServerError("closed", f"{self.url} closed the connection: {words}", hint="look at the server's log")

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            raise ServerError(
                "protocol",
                f"{self.url}{response.request.url.path} gives no JSON",
                hint="give the address of an OpenAI-compatible server",
            ) from None

    def _object(self, response: httpx.Response) -> dict[str, Any]:
        data = self._json(response)
        if not isinstance(data, dict):
            raise ServerError("protocol", f"{self.url} gives JSON that is no object")
        return data


def _parsed(data: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        raise ServerError("protocol", f"an event that is no JSON: {data[:80]!r}") from None
    if not isinstance(found, dict):
        raise ServerError("protocol", f"an event that is no object: {data[:80]!r}")
    return found
