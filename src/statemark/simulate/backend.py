"""A request inside the simulated server, and what the server asks of the cache behind it.

Server and backends only know each other through these. Owns no rule and no time.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from statemark.simulate.workload import Request


class Job:
    """A request in the server. `computed` tokens are in its state, `known` are its prompt and what it has said."""

    __slots__ = ("computed", "event", "first", "hit", "junction", "known", "order", "request", "store", "tick")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.order = -1  # of admission
        self.computed = 0
        self.known = request.prompt
        self.junction = 0
        self.hit: int | None = None  # at its first admission
        self.first = 0.0  # time of the first token
        self.tick = -1  # decode steps counted when it began to decode, or was last looked at; -1: not decoding
        self.event = 0
        self.store: Any = None  # the backend's

    @property
    def said(self) -> int:
        return self.known - self.request.prompt

    @property
    def prefills(self) -> bool:
        """Whether its next chunk is one of a prompt; the last token of a resumed request is a decode."""
        return self.computed < max(self.request.prompt, self.known - 1)


class Start(Enum):
    """What a look-up says of a request that is next in the queue."""

    READY = "ready"
    NEXT_STEP = "it would read what this very step writes"
    NO_ROOM = "no room"


class Backend(Protocol):
    """What a kind of server does about one request. Positions are tokens."""

    unit: int  # decoding requests are seen at multiples of it; 0: only at their end
    gives_back: bool  # whether it wants to see when a state is left behind, too
    decode_first: bool  # whether decoding requests come before prompts, or all in order of admission
    makes_way: bool  # where prompts wait for each other's room the youngest goes; whoever had to may come back at once

    def begin(self, job: Job) -> Start:
        """Look the request up and set `computed` to its hit."""

    def cut(self, job: Job, offer: int, behind: bool) -> int:
        """How many of `offer` tokens to run. `behind`: another prompt has run in this step."""

    def run(self, job: Job, count: int, admitted: bool) -> bool:
        """Account for `count` tokens from `computed` on; False where there is no room."""

    def end_step(self) -> None:
        """The step has run: what comes now belongs to the next one."""

    def leave(self, job: Job, finished: bool) -> None:
        """The request is done, or gives way to others."""

    def seen(self, job: Job) -> None:
        """A decoding request stands at `computed` without having been looked at since."""
