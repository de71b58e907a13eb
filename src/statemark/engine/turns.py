"""Where messages end in a rendered prompt, found without knowing the template, and which token positions these are.

Owns the search by rendering parts of the conversation. Must not know Jinja or any model: it is given a function that
renders a list of messages and may refuse.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from statemark.errors import InvalidRequestError

Message = dict[str, Any]
Render = Callable[[list[Message]], str]

# Renderings that one prompt may cost. Long conversations spend them on user messages and on the newest ones.
MAX_BOUNDARIES = 64
_NEWEST = 16
HEADER = "generation header"
MARK = "\ue000statemark\ue000"  # what no message holds


class TurnFinder:
    """Finds where messages begin, and remembers it: the next prompt of a conversation begins with this one."""

    def __init__(self, *, remembered_prompts: int = 64) -> None:
        self._size = remembered_prompts
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._lock = Lock()

    def begins(self, render: Render, messages: list[Message], full: str, *, context: str = "") -> dict[int, int]:
        """Which message begins at which character of `full`, ascending; len(messages) is the generation header.

        `render` gives a list of messages without a generation header; `context` stands for whatever else decides
        what it gives, and for who may profit from what is remembered: only prompts of the same context do. Four ways,
        by falling exactness, to find where message k begins:
        1. the rendering of messages[:k] is how `full` begins;
        2. it isn't, because a template treats a last message in its own way (reasoning, empty think tags) or refuses
           these: then with the last user message put after messages[:k], less what that message adds;
        3. as far as one of these agrees with `full`, if what differs has nothing of message k - 1: an end-of-text
           mark, the end of a block that messages share;
        4. where the content of message k - 1 ends: there a rendering of all messages with something appended to it
           parts from `full`.
        """
        keys = _prefix_keys(messages, context)
        search = _Search(render, messages, full)
        starts, search.rough = self._remembered(keys, full, search.anchor)
        wanted = _chosen(messages, [k for k in range(len(messages)) if k not in starts])
        starts |= {k: search.start(k) for k in wanted}
        with self._lock:
            self._known[keys[-1]] = _Known(full, starts, search.anchor, search.rough)
            while len(self._known) > self._size:
                self._known.popitem(last=False)
        found = {starts[k]: k for k in sorted(starts)}  # of messages that show nothing, the last one counts
        found[search.header()] = len(messages)
        return {offset: found[offset] for offset in sorted(found) if 0 < offset < len(full)}

    def _remembered(self, keys: list[bytes], full: str, anchor: int) -> tuple[dict[int, int], set[int]]:
        """What an earlier prompt says about this one as far as their texts agree, and which of it is rough."""
        with self._lock:
            earlier = next((self._known[key] for key in reversed(keys) if key in self._known), None)
        if earlier is None:
            return {}, set()
        agree = _common(earlier.full, full)
        # What wasn't found, or only by the fourth way, may be found by the second if another user message has come.
        rough = earlier.rough if earlier.anchor == anchor else set()
        exact = earlier.starts.keys() - earlier.rough
        starts = {k: at for k, at in earlier.starts.items() if k in exact | rough and at <= agree}
        return starts, rough & starts.keys()


@dataclass(frozen=True)
class _Known:
    full: str
    starts: dict[int, int]  # of messages; 0 where none was found
    anchor: int
    rough: set[int]


def _prefix_keys(messages: list[Message], context: str) -> list[bytes]:
    """For each message a digest of all up to it."""
    digest, keys = hashlib.blake2b(context.encode(), digest_size=16), []
    for message in messages:
        digest.update(json.dumps(message, sort_keys=True, default=repr).encode())
        keys.append(digest.digest())
    return keys


class _Search:
    """One prompt's search. Offset 0 stands for "not found": nobody needs the beginning."""

    def __init__(self, render: Render, messages: list[Message], full: str) -> None:
        self._render = render
        self._messages = messages
        self._full = full
        self.rough: set[int] = set()  # messages whose beginning is known by the fourth way or not at all
        self.anchor = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)

    def header(self) -> int:
        """Where the messages end and the generation header begins."""
        whole = self._try(self._messages)
        return 0 if whole is None else _common(whole, self._full)

    def start(self, k: int) -> int:
        """Where message k begins."""
        content = self._messages[k - 1]["content"].strip() if k > 0 else ""
        alone = self._try(self._messages[:k]) if k > 0 else None
        if alone is not None and self._full.startswith(alone):
            if content in alone or content not in self._full[len(alone) :]:
                return len(alone)
            alone = None  # it is shown further on: in the next message
        found = [] if alone is None else [alone]
        if k <= self.anchor and self._anchor_text:
            with_anchor = self._try([*self._messages[:k], self._messages[self.anchor]])
            if with_anchor is not None and with_anchor.endswith(self._anchor_text):
                part = with_anchor[: -len(self._anchor_text)]
                if self._full.startswith(part):
                    return len(part)
                found.insert(0, part)
        for part in found:
            agree = _common(part, self._full)
            if agree and content and content not in part[agree:]:
                return agree
        self.rough.add(k)
        return self._content_end(k - 1) if content else 0

    def _content_end(self, k: int) -> int:
        """Where the content of message k ends."""
        messages = self._messages
        marked = self._try(
            [*messages[:k], {**messages[k], "content": messages[k]["content"] + MARK}, *messages[k + 1 :]]
        )
        agree = 0 if marked is None else _common(marked, self._full)
        return agree if marked is not None and marked.startswith(MARK, agree) else 0

    @cached_property
    def _anchor_text(self) -> str:
        """What the last user message adds when it comes once more; empty if the template won't have that."""
        once = self._try(self._messages[: self.anchor + 1])
        twice = self._try([*self._messages[: self.anchor + 1], self._messages[self.anchor]])
        if once is None or twice is None or not twice.startswith(once):
            return ""
        added = twice[len(once) :]
        return added if once.endswith(added) else ""

    def _try(self, messages: list[Message]) -> str | None:
        try:
            return self._render(messages)
        except InvalidRequestError:
            return None


def _common(a: str, b: str) -> int:
    """How many characters the two begin with alike: by halving, so that each character is compared once or twice."""
    same, high = 0, min(len(a), len(b))
    while same < high:
        middle = (same + high + 1) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            high = middle - 1
    return same


def _chosen(messages: list[Message], unknown: list[int]) -> list[int]:
    """Which messages' beginnings to look for: all, or the most useful ones of a long conversation."""
    if len(unknown) <= MAX_BOUNDARIES:
        return unknown
    around_users = {k for i, message in enumerate(messages) if message["role"] == "user" for k in (i, i + 1)}
    newest_first = sorted(unknown, reverse=True)
    order = [*(0, 1), *newest_first[:_NEWEST], *sorted(around_users, reverse=True), *newest_first]
    candidates = set(unknown)
    return [k for k in dict.fromkeys(order) if k in candidates][:MAX_BOUNDARIES]


@dataclass(frozen=True)
class Turns:
    """`positions`: token counts at which messages end, ascending, none of them 0 or all tokens.

    `roles`: whose text begins at 0 and at each of the positions: a message's role, "preamble" before the first message,
    HEADER behind the last one. Where the end of a message wasn't found it is "user or tool" and the like.
    """

    positions: tuple[int, ...]
    roles: tuple[str, ...]


def token_turns(spans: Sequence[tuple[int, int]], begins: Mapping[int, int], roles: Sequence[str]) -> Turns:
    """What `TurnFinder.begins` says in tokens; `spans`: the characters [begin, end) of each, `roles`: of the messages.

    Where a token reaches across a beginning, the position is before it: what is shared for sure.
    """
    at: dict[int, int] = {}
    for offset, message in begins.items():
        at[bisect_right(spans, offset, key=lambda span: span[1])] = message
    inside = [count for count in at if 0 < count < len(spans)]
    first = at.get(0, -1 if inside and at[inside[0]] == 0 else 0)
    edges = [first, *(at[count] for count in inside)]
    names = [_roles(roles, edge, end) for edge, end in zip(edges, [*edges[1:], len(roles)], strict=True)]
    return Turns(tuple(inside), tuple(names))


def _roles(roles: Sequence[str], begin: int, end: int) -> str:
    """Of the messages from `begin` to before `end`."""
    if begin < 0:
        return "preamble"
    return " or ".join(dict.fromkeys(roles[begin : max(end, begin + 1)])) or HEADER
