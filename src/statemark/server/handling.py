"""How a request wants to be treated apart from its sampling: its name, its turn in the queue, its part of the cache."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Any, Protocol

from statemark.server.errors import bad_request

_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
_PRIORITY = 2**31


class Handled(Protocol):
    """Fields of the requests that have all of them."""

    @property
    def request_id(self) -> str | None: ...
    @property
    def priority(self) -> int: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def cache_prompt(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Handling:
    """See `EngineRequest` for what the fields mean. `name` is the answer's id."""

    name: str
    priority: int = 0
    cache_salt: str = ""
    use_cache: bool = True

    def engine_fields(self) -> dict[str, Any]:
        return {"priority": self.priority, "cache_salt": self.cache_salt, "use_cache": self.use_cache}


def handling(asked: Handled, prefix: str) -> Handling:
    """`prefix` is how ids begin in the API that asks; what follows is the caller's `request_id`, or drawn."""
    given = asked.request_id
    if given is not None and not _NAME.fullmatch(given):
        raise bad_request("request_id must have 1 to 128 letters, digits or characters of ._:/-", param="request_id")
    if not -_PRIORITY <= asked.priority < _PRIORITY:
        raise bad_request(f"priority must be a whole number of 32 bits, got {asked.priority}", param="priority")
    return Handling(
        name=f"{prefix}{given or uuid.uuid4().hex}",
        priority=asked.priority,
        cache_salt=asked.cache_salt or "",
        use_cache=asked.cache_prompt,
    )
