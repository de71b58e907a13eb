"""Publication: which slots and pages enter the cache after a step, by position and mask, as vLLM 0.32 does it.

Nothing here asks what a slot holds before binding it to a hash: that is the point. The comparison comes afterwards.
"""

from __future__ import annotations

from dataclasses import replace

from statemark.align.frame import Frame
from statemark.align.oracle.cache import Cache, CacheGroup, StateEntry
from statemark.align.oracle.prompt import Digest, Text
from statemark.align.oracle.table import Content, StateTable
from statemark.align.positions import Kept, replay_boundaries, replay_point


def cacheable_tokens(frame: Frame, group: CacheGroup, computed: int) -> int:
    """How much of the computed prefix this group may publish."""

    def aligned(tokens: int) -> int:
        return tokens if frame.fine else frame.scheduler_block.floor(tokens)

    if not group.dropped or aligned(computed) == 0:
        return aligned(computed)
    final = max(0, computed - max(0, frame.lookahead - 1))
    return min(final, aligned(final) + group.block)


class Publisher:
    """Enters one request's blocks into the cache as they fill."""

    def __init__(self, frame: Frame, cache: Cache, prompt_length: int) -> None:
        self.frame = frame
        self.cache = cache
        self.prompt_length = prompt_length
        self._pages_done: dict[int, int] = {}
        self._tail: Digest | None = (
            None  # entered off the grid in the last step, from the slot that the request runs in
        )

    def resumed_at(self, position: int) -> None:
        for index, group in enumerate(self.cache.groups):
            self._pages_done[index] = position // group.block

    def attention(self, tokens: Text, computed: int, junction: int) -> None:
        for index, group in enumerate(self.cache.groups):
            if group.is_state:
                continue
            count = cacheable_tokens(self.frame, group, computed)
            done = self._pages_done.get(index, 0)
            for page in range(done, count // group.block):
                if group.is_full or self._window_keeps(group, page, junction):
                    self._add_page(index, tokens.digest((page + 1) * group.block), (page + 1) * group.block)
            self._pages_done[index] = max(done, count // group.block)
            if group.is_full and group.block != self.frame.hash_unit.tokens:
                self._attention_tail(index, group, tokens, count)

    def _attention_tail(self, index: int, group: CacheGroup, tokens: Text, count: int) -> None:
        limit = self.prompt_length if group.dropped else self.prompt_length - 1
        boundary = self.frame.hash_unit.floor(limit)
        if 0 < boundary <= count and boundary % group.block:
            self._add_page(index, tokens.digest(boundary), boundary)

    def _window_keeps(self, group: CacheGroup, page: int, junction: int) -> bool:
        frame, unit = self.frame, self.frame.hit_unit.tokens
        if unit % group.block:
            return True
        shift = int(group.dropped)
        need = -(-((group.window or 1) - 1) // group.block) + shift
        segment = unit if frame.retention is None else frame.retention
        if segment:
            per = segment // group.block
            if need >= per or (page >= shift and (page - shift) % per >= per - need):
                return True
        if frame.retention is None:
            return False
        for boundary in self._reachable(junction):
            end = boundary // unit * unit // group.block + shift
            if end - need <= page < end:
                return True
        return False

    def _reachable(self, junction: int) -> list[int]:
        frame = self.frame
        found = [*replay_boundaries(self.prompt_length, frame.scheduler_block.tokens, frame.drop)]
        return [*found, junction] if junction else found

    def _add_page(self, index: int, digest: Digest, position: int) -> None:
        self.cache.pages.setdefault((index, digest), position)

    def states(
        self, table: StateTable, group: CacheGroup, tokens: Text, computed: int, junction: int, step: int
    ) -> list[tuple[int, StateEntry]]:
        """Bind the table's columns that are now full; (boundary, entry) of every one."""
        grid = self.frame.grid.tokens
        count = cacheable_tokens(self.frame, group, computed)
        kept = Kept(self.frame, self.prompt_length, junction)
        new = []
        for column in range(table.published, count // grid):
            boundary = (column + 1) * grid
            content = table.slots.get(column)
            if content is not None and kept.holds(boundary):
                new.append(self._enter(tokens, boundary, content, step))
        table.published = max(table.published, count // grid)
        return new

    def state_tail(
        self, table: StateTable, group: CacheGroup, tokens: Text, computed: int, was: int, junction: int, step: int
    ) -> list[tuple[int, StateEntry]]:
        """The state at a prompt's last hash boundary, copied aside before the request runs on in its slot."""
        frame = self.frame
        count = cacheable_tokens(frame, group, computed)
        if count == 0 or not frame.hash_unit.on(count):
            return []
        last = replay_point(self.prompt_length, frame.hash_unit.tokens, frame.drop)
        at_junction = frame.junction_checkpoint and count == junction and was < count <= self.prompt_length
        content = table.slots.get(-(-count // frame.grid.tokens) - 1)
        if (count != last and not at_junction) or content is None:
            return []
        entry = self._enter(tokens, count, content, step)
        if count % frame.grid.tokens:
            table.published = min(table.published, count // frame.grid.tokens)
            self._tail = tokens.digest(count)
        return [entry]

    def run_on(self, step: int) -> None:
        """The request goes on in the slot of its tail: the entry moves to a copy that only this step fills."""
        entry = None if self._tail is None else self.cache.states.get(self._tail)
        if self._tail is not None and entry is not None:
            self.cache.states[self._tail] = replace(entry, step=step)
        self._tail = None

    def exported(
        self, tokens: Text, content: Content, position: int, junction: int, step: int
    ) -> list[tuple[int, StateEntry]]:
        """A state that the kernel saved from inside the chunk, under the position that it was asked for."""
        frame = self.frame
        of_prompt = position == replay_point(self.prompt_length, frame.hit_unit.tokens, frame.drop)
        periodic = frame.grid.on(position) and Kept(frame, self.prompt_length).periodic(position)
        if not (of_prompt or periodic or position == junction):
            return []
        return [self._enter(tokens, position, content, step)]

    def _enter(self, tokens: Text, position: int, content: Content, step: int) -> tuple[int, StateEntry]:
        """Where the digest is there already, the first writer's block goes on to answer, until it is evicted."""
        digest = tokens.digest(position)
        entry = StateEntry(position, content, step)
        before = self.cache.states.get(digest)
        self.cache.states[digest] = entry if before is None else replace(before, step=step)
        return position, entry
