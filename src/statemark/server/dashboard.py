"""The page at / and the numbers that it shows. The page is one file without outside resources; see dashboard.html.

No token and no text is among the numbers: whoever may see them needn't be whose prompts are cached.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from statemark import __version__
from statemark.cache import PAGE_TOKENS
from statemark.server.errors import JsonResponse
from statemark.server.metrics import Metrics
from statemark.server.state import ServerState

_MARKS = 300
_PATIENCE = 2.0  # seconds; a step may take longer, then the page asks again
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)

# Name on the page -> metric. All only grow, so that the page can show what happened since it last asked.
_GROWING = {
    "generated_tokens": "vllm:generation_tokens_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "queried_tokens": "vllm:prefix_cache_queries_total",
    "first_token_seconds": "vllm:time_to_first_token_seconds_sum",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "gap_seconds": "vllm:inter_token_latency_seconds_sum",
    "gaps": "vllm:inter_token_latency_seconds_count",
}
_STATS = (
    *("requests_running", "requests_waiting", "prompt_tokens_cached", "tokens_computed", "cache_bytes"),
    *("cache_used_bytes", "pages_used", "slots_used", "page_bytes", "slot_bytes", "marks", "marks_evicted"),
)
_LOST = "tokens_lost_"


@cache
def _page() -> tuple[bytes, str]:
    """The page, and the policy that allows its own script and style and nothing else."""
    text = (resources.files("statemark.server") / "dashboard.html").read_text(encoding="utf-8")
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, body in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(allowed['script'])}",
        f"style-src {' '.join(allowed['style'])}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    return text.encode(), "; ".join(policy)


async def page(request: Request) -> Response:
    body, policy = _page()
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(body, media_type="text/html; charset=utf-8", headers=headers)


async def state(request: Request) -> Response:
    """What runs now, what was counted so far, and where marks are. Never more than a few hundred of them."""
    server: ServerState = request.app.state.server
    found: dict[str, Any] = {"status": server.status(), "version": __version__, "model": None, "engine": None}
    found |= {"totals": _totals(server.metrics, None), "buckets": {}, "marks": [], "page_tokens": PAGE_TOKENS}
    model = server.engine.backend
    if model is None:
        return JsonResponse(found)
    found["totals"] = _totals(server.metrics, model.name)
    found["buckets"] = server.metrics.buckets()
    found["model"] = {
        "name": model.name,
        "fingerprint": model.fingerprint,
        "precision": model.precision,
        "isa": model.isa,
        "threads": model.threads,
        "max_model_len": model.max_model_len,
        "max_num_seqs": model.max_num_seqs,
    }
    try:
        asked = server.engine.run(lambda backend: (dict(backend.stats()), backend.marks(_MARKS)))
        stats, marks = await asyncio.wait_for(asked, _PATIENCE)
    except TimeoutError:
        return JsonResponse(found)
    found["engine"] = {name: stats.get(name, 0) for name in _STATS}
    found["engine"]["tokens_lost"] = {
        name.removeprefix(_LOST): value for name, value in sorted(stats.items()) if name.startswith(_LOST)
    }
    found["marks"] = [asdict(mark) for mark in marks]
    return JsonResponse(found)


def _totals(metrics: Metrics, model: str | None) -> dict[str, float]:
    labels = {"model_name": model or "", "engine": "0"}
    return {name: metrics.registry.get_sample_value(metric, labels) or 0.0 for name, metric in _GROWING.items()}
