"""The prefix cache: entries of every group by digest, and the lookup that all groups must agree on.

Follows vLLM 0.32's coordinator: full attention from the left, windows and states from the right, each group only ever
shortening the candidate. Never evicts by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from statemark.align.frame import Frame
from statemark.align.geometry import Geometry
from statemark.align.groups import Role
from statemark.align.oracle.prompt import Digest
from statemark.align.oracle.table import Content

DigestAt = Callable[[int], Digest]


@dataclass(frozen=True)
class CacheGroup:
    """A group as the lookup sees it: its block, whether it's a window, whether it gives back a block."""

    role: Role
    block: int
    window: int | None = None
    dropped: bool = False

    @property
    def is_state(self) -> bool:
        return self.role is Role.STATE

    @property
    def is_full(self) -> bool:
        return not self.is_state and self.window is None


def groups_of(geometry: Geometry) -> tuple[CacheGroup, ...]:
    """Distinct cacheable groups, full attention first, as the coordinator sorts them."""
    found: dict[tuple[Role, int, int | None], CacheGroup] = {}
    for group in geometry.cacheable:
        key = (group.role, group.tokens, group.window)
        before = found.get(key)
        found[key] = CacheGroup(
            group.role, group.tokens, group.window, group.dropped or bool(before and before.dropped)
        )
    return tuple(sorted(found.values(), key=lambda g: not g.is_full))


@dataclass(frozen=True)
class Lookup:
    """`hit` is what every group has; `longest` the longest that any one group had, which makes a junction."""

    hit: int
    longest: int
    content: Content | None = None
    fresh: bool = False  # the entry was made in this very step: the request has to wait for the next

    @property
    def junction(self) -> int:
        return self.longest if self.longest > self.hit else 0


@dataclass(frozen=True)
class StateEntry:
    """A state under the digest of `position` tokens. `content` is what the slot really held at the end of the step."""

    position: int
    content: Content
    step: int


@dataclass
class Cache:
    """Entries of all groups. Attention entries are exact by construction; states are what their slots held."""

    frame: Frame
    groups: tuple[CacheGroup, ...]
    states: dict[Digest, StateEntry] = field(default_factory=dict)
    pages: dict[tuple[int, Digest], int] = field(default_factory=dict)

    def lookup(self, digest: DigestAt, known: int, step: int) -> Lookup:
        """The longest prefix of `known` tokens, but for the last, that all groups have."""
        frame = self.frame
        hashed = frame.hash_unit.floor(known)
        hit = known - 1
        longest = 0
        lengths: dict[int, int] = {}
        verified: set[int] = set()
        simple = len(self.groups) == 2 and self.groups[0].is_full
        while True:
            current = hit
            for index, group in enumerate(self.groups):
                if group.is_full and index in lengths:
                    current = min(current, lengths[index])
                    continue
                drop = group.dropped and index not in verified
                bound = current
                if drop and not group.is_state:
                    bound = min(current + self._margin(group), hashed)
                found = self._find(index, group, digest, bound, hashed, drop)
                if drop:
                    verified.add(index)
                elif found < current:
                    verified.clear()
                current = lengths[index] = found
                longest = max(longest, found)
            if current >= hit:
                break
            hit = current
            if simple:
                break
        hit = min(hit, current)
        entry = self.states.get(digest(hit)) if hit else None
        fresh = entry is not None and entry.step == step
        return Lookup(hit, longest, entry.content if entry else None, fresh)

    def _margin(self, group: CacheGroup) -> int:
        fine = self.frame.fine and group.is_full and group.block > self.frame.hash_unit.tokens
        return self.frame.hash_unit.tokens if fine else group.block

    def _find(self, index: int, group: CacheGroup, digest: DigestAt, bound: int, hashed: int, drop: bool) -> int:
        if group.is_state:
            return self._find_state(digest, min(bound, hashed))
        if group.window is not None:
            return self._find_window(index, group, digest, min(bound, hashed), drop)
        return self._find_full(index, group, digest, min(bound, hashed), drop)

    def _find_full(self, index: int, group: CacheGroup, digest: DigestAt, bound: int, drop: bool) -> int:
        block, unit = group.block, self.frame.hit_unit.tokens
        count = 0
        while (count + 1) * block <= bound and (index, digest((count + 1) * block)) in self.pages:
            count += 1
        hit = count * block
        if unit < block and block % unit == 0:
            for position in range(min(hit + block - unit, bound // unit * unit), hit, -unit):
                if (index, digest(position)) in self.pages:
                    hit = position
                    break
        if drop and hit:
            hit -= min(unit, block)
        return hit - hit % unit

    def _find_state(self, digest: DigestAt, bound: int) -> int:
        grid, unit = self.frame.grid.tokens, self.frame.hit_unit.tokens
        step = unit if unit < grid and grid % unit == 0 else grid
        for position in range(bound // step * step, 0, -step):
            if position % unit == 0 and digest(position) in self.states:
                return position
        return 0

    def _find_window(self, index: int, group: CacheGroup, digest: DigestAt, bound: int, drop: bool) -> int:
        block, unit = group.block, self.frame.hit_unit.tokens
        need = -(-((group.window or 1) - 1) // block) + int(drop)
        run = 0
        for i in range(bound // block - 1, -1, -1):
            if (index, digest((i + 1) * block)) not in self.pages:
                run = 0
                continue
            if run == 0 and block != unit and (i if drop else i + 1) * block % unit:
                continue
            run += 1
            if run >= need:
                run += i
                break
        else:
            while block != unit and run * block % unit:
                run -= 1
        if drop and run:
            run -= 1
            while block != unit and run * block % unit:
                run -= 1
        return run * block
