"""Proof of which server and which arm answers: asked before a run and after it, and kept with its records."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from statemark.client import Ask, Session
from statemark.errors import ConfigurationError


@dataclass(frozen=True)
class Arm:
    """`answer`: digest of what a fixed prompt gives, which differs where weights or templates do."""

    url: str
    name: str
    model: str
    fingerprint: str
    answer: str

    def figures(self) -> dict[str, Any]:
        return asdict(self)


async def prove(session: Session, model: str | None) -> Arm:
    """Who answers at this session's address. ServerError where nobody does."""
    target = await session.find(model)
    reply = await session.ask(Ask(prompt="Which server is this?", max_tokens=4, salt="preflight"))
    plugin = await session.plugin()
    answer = hashlib.sha256(reply.text.encode()).hexdigest()[:16]
    return Arm(target.url, target.name, target.model, " ".join(filter(None, (reply.fingerprint, plugin))), answer)


def expect(arm: Arm, wanted: str | None) -> None:
    """ConfigurationError unless the arm's name, model or fingerprint contains `wanted`."""
    told = f"{arm.name} | {arm.model} | {arm.fingerprint}"
    if wanted is not None and wanted not in told:
        raise ConfigurationError(
            f"{arm.url} is not the expected arm: {told} doesn't contain {wanted!r}",
            hint="start the right server, or correct --expect",
        )
