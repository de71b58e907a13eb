"""A server of any make without arithmetic, behind httpx's mock transport: block-aligned prefix cache, salts, metrics.

Log-probabilities are a hash of the prompt. A flaw is a function from (prompt, tokens reused, who wrote them) to what is
added to them, so that a test says exactly what goes wrong.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

Flaw = Callable[[list[int], int, list[int] | None], float]
OWNERS = {"statemark": "statemark", "vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp", "other": "somebody"}


def _no_flaw(prompt: list[int], hit: int, writer: list[int] | None) -> float:
    return 0.0


@dataclass
class StandIn:
    """`usage`: whether cached tokens are told there; else by /metrics if `metrics`."""

    make: str = "vllm"
    block: int = 64
    flaw: Flaw = _no_flaw
    usage: bool = True
    metrics: bool = True
    salts: bool = True
    logprobs: bool = True
    tokenizes: bool = True
    models: tuple[str, ...] = ("tiny",)
    context: int = 4096
    bodies: list[dict] = field(default_factory=list)
    hits: int = 0
    busy: int = 0  # answers of 429 that are still to come
    breaks_after: int | None = None  # completions, after which every one is answered with 500
    from_visit: int = 2  # a prefix is known from so many requests on that began with it
    cut_after: int | None = None  # events of a stream before it is cut off
    _known: list[tuple[str, list[int]]] = field(default_factory=list)

    def transport(self) -> httpx.MockTransport:
        return httpx.MockTransport(self.handle)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            cards = [{"id": m, "owned_by": OWNERS[self.make], "max_model_len": self.context} for m in self.models]
            return httpx.Response(200, json={"object": "list", "data": cards})
        if path in ("/version", "/props", "/get_server_info"):
            return httpx.Response(200, json={"version": "1.2", "build_info": "b1"})
        if path == "/metrics" and self.metrics:
            return httpx.Response(200, text=f'# HELP x\nvllm:prefix_cache_hits_total{{model="tiny"}} {self.hits}.0\n')
        if path == "/tokenize" and self.tokenizes:
            text = json.loads(request.content).get("prompt") or json.loads(request.content).get("content")
            return httpx.Response(200, json={"tokens": [ord(c) for c in text]})
        if path == "/v1/completions":
            if self.busy:
                self.busy -= 1
                return httpx.Response(429, json={"error": {"message": "full"}}, headers={"retry-after": "0"})
            if self.breaks_after is not None and len(self.bodies) >= self.breaks_after:
                return httpx.Response(500, json={"error": {"message": "out of memory"}})
            return self._complete(json.loads(request.content))
        return httpx.Response(404, json={"error": {"message": "no such path"}})

    def _complete(self, body: dict) -> httpx.Response:
        self.bodies.append(body)
        prompt = body["prompt"]
        prompt = [ord(c) for c in prompt] if isinstance(prompt, str) else prompt
        hit, writer = self._lookup(body, prompt)
        self.hits += hit
        shift = self.flaw(prompt, hit, writer)
        count = min(body["max_tokens"], 5)
        rows = [self._row([*prompt, i], shift) for i in range(count)]
        if body["stream"]:
            return self._stream(rows, prompt, hit, body)
        choice = {"index": 0, "text": "x" * count, "finish_reason": "stop", "logprobs": None}
        if self.logprobs and body.get("logprobs"):
            choice["logprobs"] = self._shaped(rows)
        if body.get("return_token_ids"):
            choice |= {"token_ids": [100 + i for i in range(count)], "prompt_token_ids": prompt}
        return httpx.Response(200, json={"choices": [choice], "usage": self._usage(prompt, count, hit)})

    def _lookup(self, body: dict, prompt: list[int]) -> tuple[int, list[int] | None]:
        salt = body.get("cache_salt", "") if self.salts else ""
        best: tuple[int, list[int] | None] = (0, None)
        if body.get("cache_prompt", True):
            for known, old in self._known:
                if known == salt and self._visits(salt, old) >= self.from_visit - 1:
                    same = next((i for i, (a, b) in enumerate(zip(prompt, old, strict=False)) if a != b), None)
                    same = min(len(prompt), len(old)) if same is None else same
                    hit = min(same, len(prompt) - 1) // self.block * self.block
                    best = max(best, (hit, old), key=lambda b: b[0])
        self._known.append((salt, prompt))
        return best if best[0] else (0, None)

    def _visits(self, salt: str, prompt: list[int]) -> int:
        return sum(1 for known, old in self._known if known == salt and old[: len(prompt)] == prompt)

    @staticmethod
    def _row(prompt: list[int], shift: float) -> list[tuple[str, float]]:
        h = hashlib.sha256(json.dumps(prompt).encode()).digest()
        return [(f"token_id:{i}", -1.0 - i - h[i] / 256 + shift) for i in range(20)]

    def _shaped(self, rows: list[list[tuple[str, float]]]) -> dict:
        if self.make == "llamacpp":
            return {
                "content": [
                    {
                        "id": 1,
                        "token": "x",
                        "logprob": row[0][1],
                        "top_logprobs": [{"id": int(k[9:]), "token": "x", "logprob": v} for k, v in row],
                    }
                    for row in rows
                ]
            }
        return {
            "tokens": [row[0][0] for row in rows],
            "token_logprobs": [row[0][1] for row in rows],
            "top_logprobs": [dict(row) for row in rows],
        }

    def _usage(self, prompt: list[int], count: int, hit: int) -> dict:
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "prompt_tokens_details": None}
        if self.usage:
            usage["prompt_tokens_details"] = {"cached_tokens": hit}
        return usage

    def _stream(self, rows: list, prompt: list[int], hit: int, body: dict) -> httpx.Response:
        events = [{"choices": [{"index": 0, "text": "x", "finish_reason": None}]} for _ in rows]
        events[-1]["choices"][0]["finish_reason"] = "length" if len(rows) == body["max_tokens"] else "stop"
        events.append({"choices": [], "usage": self._usage(prompt, len(rows), hit)})
        lines = [f"data: {json.dumps(e)}\n\n" for e in events] + ["data: [DONE]\n\n"]
        if self.cut_after is not None:
            lines = lines[: self.cut_after]
        return httpx.Response(200, text="".join(lines), headers={"content-type": "text/event-stream"})
