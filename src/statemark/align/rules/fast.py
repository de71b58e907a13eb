"""The rule `fast`: run freely, stop exactly where a state is going to be kept.

Between those points a chunk may end and start anywhere: blocks that it leaves half-filled are never bound to a hash,
because every boundary that the cache would keep is a stop. With every boundary kept, that is the rule `exact`.
"""

from __future__ import annotations

from statemark.align.frame import Frame
from statemark.align.positions import (
    Kept,
    Prefill,
    export_is_possible,
    export_position,
    junction_spots,
    periodic_spots,
    replay_spots,
)
from statemark.align.rules.exact import ExactRule


class FastRule:
    """Never 0, never past a boundary that the cache keeps, unless its block stays empty."""

    name = "fast"

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._dense = ExactRule(frame) if frame.retention is None else None

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        if self._dense is not None:
            return self._dense.cut(request, start, offer)
        last_token = request.end
        if start >= last_token:
            return offer
        end = start + offer
        stop = self._stop(request, start, end)
        if stop is not None:
            return stop - start
        return self._free_end(request, start, end) - start

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int:
        return self.cut(request, start, offer) if self._dense is None else self._dense.cut_behind(request, start, offer)

    def _stop(self, request: Prefill, start: int, end: int) -> int | None:
        """The first position inside the chunk that it must not run past."""
        frame = self.frame
        spots = {*junction_spots(frame, request), *periodic_spots(frame, start, min(end, request.end))}
        if not frame.grid.on(start):
            # A half-filled block is about to be completed. If the cache keeps it, its state must be the boundary's.
            boundary = frame.grid.after(start)
            if boundary < end and Kept(frame, request.prompt, request.junction).binds(boundary):
                spots.add(boundary)
        stops = [s for s in spots if start < s < end]
        if stops or not self._exports(request, start, end):
            stops += [s for s in replay_spots(frame, request.prompt) if start < s < end]
        return min(stops, default=None)

    def _exports(self, request: Prefill, start: int, end: int) -> bool:
        """Whether the kernel saves the replay point from inside this last chunk, so that no stop is needed for it."""
        frame, position = self.frame, export_position(self.frame, request)
        if end < request.end or (frame.windowed and replay_spots(frame, request.prompt) != {position}):
            return False
        return export_is_possible(frame, start, end, position, frame.grid.tokens)

    def _free_end(self, request: Prefill, start: int, end: int) -> int:
        """Where a chunk without a stop ends: at the offer's end, unless a little less saves a later stop."""
        frame, offer = self.frame, end - start
        remaining = request.known - end
        if 0 < remaining < frame.lookahead and request.known - frame.lookahead > start:
            return request.known - frame.lookahead
        if remaining <= 0:
            return end
        for shorter, saves in (
            (frame.hash_unit.floor(end), self._next_exports),
            (frame.grid.floor(end), self._next_passes),
        ):
            if start < shorter < end and saves(request, shorter, offer):
                return shorter
        return end

    def _next_exports(self, request: Prefill, start: int, offer: int) -> bool:
        """Whether the next chunk, begun on a hash boundary, can be the last and save its state from inside."""
        return request.known - start <= offer and self._exports(request, start, request.known)

    def _next_passes(self, request: Prefill, start: int, offer: int) -> bool:
        """Whether the block that begins here would be kept for nothing: passed from its beginning, it stays empty."""
        frame, boundary = self.frame, start + self.frame.grid.tokens
        if frame.retention != 0 or start + offer <= boundary:
            return False
        if not Kept(frame, request.prompt, request.junction).binds(boundary):
            return False
        return boundary not in replay_spots(frame, request.prompt) | junction_spots(frame, request)
