"""The rule `exact`: a stop at every boundary of the state grid.

Which chunks a prompt is computed in then depends on the prompt alone, not on who wrote its prefix or shared its steps,
and equal chunks give equal numbers. Where a step's leftover is smaller than the way to the next stop, it advances by
whole kernel chunks, which leaves the recurrent kernel's own cuts where they were.
"""

from __future__ import annotations

from statemark.align.frame import Frame
from statemark.align.positions import Kept, Prefill, tail


class ExactRule:
    """Never 0, never past a boundary whose block the cache would keep."""

    name = "exact"

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def cut(self, request: Prefill, start: int, offer: int) -> int:
        # With less than one kernel chunk on offer: progress before exactness, realigned at the next cut.
        return self.cut_behind(request, start, offer) or offer

    def cut_behind(self, request: Prefill, start: int, offer: int) -> int:
        """0 where less than one kernel chunk is on offer: whoever comes behind another prefill can wait a step."""
        if start >= request.end:
            return offer
        target = self._next_stop(request, start)
        reach = start + offer
        if reach >= target:
            return target - start
        chunk, anchor = self.frame.kernel_chunk, self._last_stop(request, start)
        # A multi-module drafter wants the last `lookahead` tokens in one chunk: kept to where kernel chunks allow it.
        for limit in (min(reach, request.known - self.frame.lookahead), reach):
            end = anchor + chunk.floor(limit - anchor)
            if end > start:
                return end - start
        return 0

    def _stop_counts(self, request: Prefill, boundary: int) -> bool:
        """Whether a chunk may end at `boundary`. A multi-module drafter wants a longer last chunk, unless the cache
        would keep the block that is then passed in its middle."""
        if request.known - boundary >= self.frame.lookahead:
            return True
        return Kept(self.frame, request.prompt, request.junction).binds(boundary)

    def _own_stops(self, request: Prefill) -> list[int]:
        """Stops besides the grid, all of them functions of the prompt (the junction only on kernel chunks)."""
        frame = self.frame
        stops = [tail(frame, request.prompt)]
        if request.prompt < request.end:
            stops.append(request.prompt)  # a resumed request replays its output: the prompt's own end stays an end
        junction = request.junction
        if frame.junction_checkpoint and 0 < junction <= request.prompt:
            inside = junction - frame.grid.floor(junction)
            if frame.kernel_chunk.on(inside):
                stops.append(junction)
        return stops

    def _next_stop(self, request: Prefill, start: int) -> int:
        boundary = self.frame.grid.after(start)
        stops = [s for s in self._own_stops(request) if s > start]
        if boundary < request.known and self._stop_counts(request, boundary):
            stops.append(boundary)
        return min(stops, default=request.known)

    def _last_stop(self, request: Prefill, start: int) -> int:
        boundary = self.frame.grid.floor(start)
        if boundary and not self._stop_counts(request, boundary):
            boundary -= self.frame.grid.tokens
        return max([boundary, *(s for s in self._own_stops(request) if s <= start)])
