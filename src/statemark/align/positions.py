"""Where states can be saved, which of them the cache keeps, and where a prompt should leave one.

One set of functions for whoever writes states and whoever looks them up. vLLM 0.32's publication mask is `Kept`: a
block of the state table enters the cache exactly where `Kept.holds` is true, whatever the block really contains.
"""

from __future__ import annotations

from dataclasses import dataclass

from statemark.align.frame import Frame


@dataclass(frozen=True, slots=True)
class Prefill:
    """What a rule may know of a request: its prompt, all tokens known of it, where siblings left its path."""

    prompt: int
    known: int
    junction: int = 0

    @property
    def end(self) -> int:
        """Where prefill ends. A resumed request replays its own output, but for the last token."""
        return max(self.prompt, self.known - 1)


def replay_point(tokens: int, unit: int, drop: bool) -> int:
    """The deepest boundary that a request of `tokens` tokens can resume at.

    A lookup must leave one token to compute, so an exact multiple resumes one unit earlier. With a drafter, the last
    unit that matches is given back, which leaves tokens to compute by itself.
    """
    if drop:
        return max(0, tokens // unit * unit - unit)
    return (tokens - 1) // unit * unit if tokens > 0 else 0


def replay_boundaries(prompt: int, unit: int, drop: bool) -> tuple[int, ...]:
    """Token counts whose blocks the cache keeps for a replay of this prompt, or of a longer one."""
    if not drop:
        return (prompt - 1,)
    resend = (prompt - 1) // unit * unit
    longer = prompt // unit * unit
    return tuple(sorted({max(resend - unit, 0), max(longer - unit, 0)}))


@dataclass(frozen=True)
class Kept:
    """Which boundaries of one request's states the cache binds to a hash."""

    frame: Frame
    prompt: int
    junction: int = 0

    def points(self) -> frozenset[int]:
        """The boundaries kept on purpose: replay points and the junction, on the hit unit and then on the grid."""
        hit, grid = self.frame.hit_unit.tokens, self.frame.grid.tokens
        return frozenset(p for t in self._reasons() if (p := t // hit * hit // grid * grid) > 0)

    def _reasons(self) -> tuple[int, ...]:
        """Token counts that a state is kept for."""
        replays = replay_boundaries(self.prompt, self.frame.scheduler_block.tokens, self.frame.drop)
        return (*replays, self.junction) if self.junction else replays

    def periodic(self, boundary: int) -> bool:
        """Whether `boundary` is kept for the retention interval's sake."""
        retention, grid = self.frame.retention, self.frame.grid.tokens
        if retention == 0:
            return False
        stride = 1 if retention is None else max(retention // grid, 1)
        return (boundary // grid) % stride == 0

    def holds(self, boundary: int) -> bool:
        """Whether the block that ends at `boundary` enters the cache once the request has passed it."""
        if self.frame.retention != 0 and self.periodic(boundary):
            return True
        # the same as `boundary in self.points()`, without the set: this is asked for every request in every step
        hit, grid = self.frame.hit_unit.tokens, self.frame.grid.tokens
        return boundary > 0 and any(t // hit * hit // grid * grid == boundary for t in self._reasons())

    def binds(self, boundary: int) -> bool:
        """Whether anything enters the cache under `boundary` when it is passed: the mask, or the rule for a prompt's
        last hash boundary, which looks at the aligned count of tokens and not at where the chunk ends."""
        if self.holds(boundary):
            return True
        frame, unit = self.frame, self.frame.scheduler_block
        last = replay_point(self.prompt, frame.hash_unit.tokens, frame.drop)
        if boundary != last or frame.fine:
            return False
        # A group that gives back a block publishes one block past the aligned count.
        return unit.on(last) or (frame.states_give_back and unit.on(last - frame.grid.tokens))


def tail(frame: Frame, prompt: int) -> int:
    """Where a prompt's last partial block is hashed: only with hits finer than a block; 0 where there is none."""
    if not frame.fine:
        return 0
    position = replay_point(prompt, frame.hash_unit.tokens, frame.drop)
    return position if position < prompt else 0


def replay_spots(frame: Frame, prompt: int) -> frozenset[int]:
    """Where a state makes a replay of this prompt resume as deep as all groups allow."""
    grid = frame.grid
    whole = replay_point(prompt, frame.scheduler_block.tokens, frame.drop)
    if not frame.fine:
        spots = {grid.floor(whole)}
    elif frame.windowed:
        # With a drafter, a window is kept before the scheduler's boundary, before the tail only where it was shared.
        spots = {tail(frame, prompt), grid.floor(whole) if frame.drop else 0}
    else:
        block = replay_point(prompt, grid.tokens, frame.drop)
        spots = {tail(frame, prompt), block if block in Kept(frame, prompt).points() else 0}
    if frame.fine and frame.checkpoint_step is not None and frame.retention != 0:
        # With an interval the kernel exports from every chunk, and one that does leaves no tail: come to it inside its
        # block, where there is nothing to export.
        spots.add(grid.floor(tail(frame, prompt)))
    return frozenset(spots - {0})


def junction_spots(frame: Frame, request: Prefill) -> frozenset[int]:
    """Where a state makes the next sibling resume at this request's junction."""
    if not request.junction:
        return frozenset()
    spots = {frame.grid.floor(frame.hit_unit.floor(request.junction))}
    if frame.junction_checkpoint and request.junction <= request.prompt:
        spots.add(request.junction)
    return frozenset(spots - {0})


def periodic_spots(frame: Frame, start: int, end: int) -> range:
    """Boundaries inside (start, end) that the retention interval keeps."""
    if frame.retention == 0:
        return range(0)
    stride = frame.grid.tokens if frame.retention is None else max(frame.retention, frame.grid.tokens)
    return range((start // stride + 1) * stride, end, stride)


def export_is_possible(frame: Frame, start: int, end: int, position: int, grid: int) -> bool:
    """Whether the kernel can save the state at `position` from inside the chunk [start, end).

    `grid` is passed because vLLM 0.32's scheduler asks with another unit than its manager and workers do.
    """
    step, unit = frame.checkpoint_step, frame.hash_unit.tokens
    if step is None:
        return False
    return (
        start % unit == 0
        and -(-end // grid) - 2 > (start - 1) // grid
        and start + unit <= position < end
        and (position - start) % step == 0
    )


def export_position(frame: Frame, request: Prefill) -> int:
    """The position that an internal checkpoint of the last prefill chunk would save."""
    return replay_point(request.end, frame.hit_unit.tokens, frame.drop)
