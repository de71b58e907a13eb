"""Which server answers at an address: make, version, model, and what requests to it may contain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from statemark.errors import ServerError

MAKES = {"statemark": "Statemark", "vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama-server"}


@dataclass(frozen=True, kw_only=True)
class Target:
    """`make` is a key of MAKES, or "unknown". `max_model_len` in tokens, None where the server doesn't say.

    `fingerprint`: what identifies this start of the server, as far as it tells.
    """

    url: str
    model: str
    make: str
    version: str = ""
    max_model_len: int | None = None
    fingerprint: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, (MAKES.get(self.make, "a server of unknown make"), self.version)))

    @property
    def salts(self) -> bool:
        """Whether requests may carry `cache_salt`."""
        return self.make in ("statemark", "vllm", "sglang")

    @property
    def uncached(self) -> bool:
        """Whether a request can ask for an empty cache (`cache_prompt: false`)."""
        return self.make == "llamacpp"


def base_url(url: str) -> str:
    """The address without /v1 and slashes at its end; a scheme is added where there is none."""
    url = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    return url if "://" in url else f"http://{url}"


def choose_model(listing: Any, wanted: str | None, url: str) -> dict[str, Any]:
    """The entry of /v1/models to use. ServerError, with the names, where the choice isn't clear."""
    data = listing.get("data") if isinstance(listing, dict) else None
    cards = [c for c in data if isinstance(c, dict) and isinstance(c.get("id"), str)] if isinstance(data, list) else []
    if not cards:
        raise ServerError(
            "protocol",
            f"{url}/v1/models is no list of models as OpenAI has it",
            hint="give the address of an OpenAI-compatible server, without the path behind /v1",
        )
    names = ", ".join(c["id"] for c in cards[:8])
    if wanted is None:
        if len(cards) > 1:
            raise ServerError("refused", f"{url} serves {len(cards)} models: {names}", hint="choose one with --model")
        return cards[0]
    for card in cards:
        if card["id"] == wanted:
            return card
    raise ServerError("refused", f"{url} serves no model {wanted!r}; it serves {names}", hint="choose one of these")


def make_of(card: dict[str, Any]) -> str:
    """The make from who owns the model, as each of these servers says it."""
    owner = str(card.get("owned_by", "")).lower().replace(".", "")
    return owner if owner in MAKES else "unknown"


def context_of(card: dict[str, Any]) -> int | None:
    meta = card.get("meta")
    found = card.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return found if isinstance(found, int) and found > 0 else None
