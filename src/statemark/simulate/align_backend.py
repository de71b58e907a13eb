"""vLLM's align mode as a backend: any chunk rule, the cache as the oracle models it, and the pool of blocks below it.

What a slot holds, what is published and what a lookup finds is the oracle's (`align/oracle`). This file adds which
blocks that takes, and what is lost when they are given to others. Knows no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from statemark.align.frame import Frame
from statemark.align.geometry import Geometry
from statemark.align.groups import Role
from statemark.align.oracle import Content, StateTable
from statemark.align.oracle.cache import Cache, CacheGroup, StateEntry, groups_of
from statemark.align.oracle.publish import Publisher
from statemark.align.positions import Prefill, export_is_possible, replay_point
from statemark.align.rules import Rule
from statemark.errors import ConfigurationError
from statemark.simulate.backend import Job, Start
from statemark.simulate.pool import Key, Pool
from statemark.simulate.workload import Request


class Managers:
    """The groups in the order in which vLLM's managers take and give back blocks: the recurrent ones first, since a
    hybrid's first layer is recurrent. `state` and `pages`: (manager's number, index of the group in the cache)."""

    def __init__(self, geometry: Geometry, groups: Sequence[CacheGroup]) -> None:
        self.state: list[int] = []
        self.pages: list[tuple[int, int]] = []
        count = 0
        for states in geometry.state_groups:
            for _ in range(states.copies):
                self.state.append(count)
                count += 1
        for index, group in enumerate(groups):
            if group.is_state:
                continue
            copies = sum(
                g.copies
                for g in geometry.cacheable
                if (g.role, g.tokens, g.window) == (group.role, group.block, group.window)
            )
            for _ in range(copies):
                self.pages.append((count, index))
                count += 1
        self.count = count


class Store:
    """What one request holds: its state table, how far it has been published, and its blocks."""

    __slots__ = ("allocated", "columns", "pages", "publisher", "retired", "rings", "table")

    def __init__(self, table: StateTable, publisher: Publisher) -> None:
        self.table = table
        self.publisher = publisher
        self.pages: dict[int, list[int]] = {}  # manager -> blocks of its pages
        self.columns: dict[int, list[int]] = {}  # column of the state table -> a block for each recurrent manager
        self.allocated: list[int] = []  # drafts' state blocks
        self.rings: list[int] = []  # a block of each ring, from the first step to the last
        self.retired: int | None = None  # the column before the running one


def _refuse_unmodelled(frame: Frame, groups: Sequence[CacheGroup], rule: str) -> None:
    """What vLLM does with blocks of these kinds isn't known well enough to count evictions."""
    without = "leave out --num-gpu-blocks-override and --kv-cache-memory-bytes: the cache is then without limit"
    window = next((g for g in groups if g.window is not None), None)
    if window is not None:
        raise ConfigurationError(
            f"{rule} with a memory limit: layers with a window of {window.window} tokens give back blocks while they "
            "run, which isn't modelled",
            hint=f"{without}; or simulate without the drafter that has the window",
        )
    if frame.fine:
        raise ConfigurationError(
            f"{rule} with a memory limit: hits of {frame.hit_unit} inside blocks of {frame.grid} copy part of a "
            "block, which isn't modelled",
            hint=f"{without}; or leave out --prefix-match-unit",
        )


class AlignBackend:
    """One rule on one geometry. `blocks`: the pool's size, None for no limit."""

    decode_first = False
    makes_way = False

    def __init__(self, geometry: Geometry, frame: Frame, rule: Rule, blocks: int | None = None) -> None:
        self.frame = frame
        self.rule = rule
        groups = groups_of(geometry)
        self.cache = Cache(frame, groups)
        self.stale_reads = 0
        self.stale_entries = 0
        self.evicted = 0
        self._group = next(g for g in groups if g.is_state)
        self._managers = Managers(geometry, groups)
        self._page = {index: group.block for index, group in enumerate(groups) if not group.is_state}
        self._drafts = geometry.drafting.depth
        self._rings = sum(g.copies for g in geometry.groups if g.role is Role.RING)
        self._step = 0
        self.unit = gcd(*(g.block for g in groups))
        self.gives_back = blocks is not None
        self.pool: Pool | None = None
        if blocks is not None:
            _refuse_unmodelled(frame, groups, rule.name)
            self.pool = Pool(blocks, self._lost)

    # --- the server's calls -----------------------------------------------------------------------------------

    def begin(self, job: Job) -> Start:
        request: Request = job.request
        found = self.cache.lookup(request.digest, job.known, self._step)
        if found.fresh:
            return Start.NEXT_STEP
        job.computed, job.junction = found.hit, found.junction
        table = StateTable(self.frame.grid)
        publisher = Publisher(self.frame, self.cache, request.prompt)
        if found.content is not None:
            right = found.content == Content(found.hit, request.digest(found.hit))
            table.resume(found.hit, Content(found.hit, request.digest(found.hit), honest=right))
            publisher.resumed_at(found.hit)
        job.store = Store(table, publisher)
        return Start.READY

    def cut(self, job: Job, offer: int, behind: bool) -> int:
        cut = self.rule.cut_behind if behind else self.rule.cut
        return cut(Prefill(job.request.prompt, job.known, job.junction), job.computed, offer)

    def seen(self, job: Job) -> None:
        store: Store = job.store
        before = store.table.content()
        honest = before is None or before.honest
        store.table.advance(Content(job.computed, job.request.digest(job.computed), honest))

    def run(self, job: Job, count: int, admitted: bool) -> bool:
        store: Store = job.store
        start, end = job.computed, job.computed + count
        decoding = start >= max(job.request.prompt, job.known - 1)
        export = None if decoding else self._export(job, start, end)
        if self.pool is not None and not self._allocate(self.pool, job, end, admitted, export):
            return False
        table = store.table
        before = table.content()
        honest = before is None or before.honest
        if admitted and start:
            self.stale_reads += not honest
        table.begin_step(start, end)
        column = -(-end // self.frame.grid.tokens) - 2
        if export is not None:
            table.put(column, Content(export, job.request.digest(export), honest))
        table.advance(Content(end, job.request.digest(end), honest))
        self._publish(job, start, end, export, column)
        return True

    def end_step(self) -> None:
        self._step += 1

    def leave(self, job: Job, finished: bool) -> None:
        store, job.store = job.store, None
        if store is None or self.pool is None:
            return
        for number in range(len(self._managers.state)):
            held = [blocks[number] for _, blocks in sorted(store.columns.items(), reverse=True)]
            self.pool.free([*store.allocated[number :: len(self._managers.state)], *held])
        for manager, _ in self._managers.pages:
            self.pool.free(store.pages[manager][::-1])
        self.pool.free(store.rings)

    # --- publication ------------------------------------------------------------------------------------------

    def _export(self, job: Job, start: int, end: int) -> int | None:
        """The position that the kernel saves from inside this chunk; as the oracle's world has it."""
        frame = self.frame
        if frame.checkpoint_step is None or (frame.retention == 0 and end < max(job.request.prompt, job.known - 1)):
            return None
        position = replay_point(end, frame.hit_unit.tokens, frame.drop)
        if not export_is_possible(frame, start, end, position, frame.grid.tokens):
            return None
        column = -(-end // frame.grid.tokens) - 2
        return position if column >= 0 and column not in job.store.table.slots else None

    def _publish(self, job: Job, start: int, end: int, export: int | None, column: int) -> None:
        store: Store = job.store
        publisher, table, request = store.publisher, store.table, job.request
        done = dict(publisher._pages_done)
        publisher.attention(request, end, job.junction)
        content = None if export is None else table.slots.pop(column)
        new = publisher.states(table, self._group, request, end, job.junction, self._step)
        if export is not None and content is not None:
            new += publisher.exported(request, content, export, job.junction, self._step)
        else:
            new += publisher.state_tail(table, self._group, request, end, start, job.junction, self._step)
        for position, entry in new:
            self.stale_entries += entry.content != Content(position, request.digest(position))
        if self.pool is not None:
            self._bind(self.pool, store, request, done, new, export, column)

    # --- blocks -----------------------------------------------------------------------------------------------

    def _bind(
        self,
        pool: Pool,
        store: Store,
        request: Request,
        done: dict[int, int],
        new: list[tuple[int, StateEntry]],
        export: int | None,
        column: int,
    ) -> None:
        for manager, index in self._managers.pages:
            block = self._page[index]
            for page in range(done.get(index, 0), store.publisher._pages_done.get(index, 0)):
                pool.bind(store.pages[manager][page], (manager, request.digest((page + 1) * block)))
        for position, _ in new:
            at = column if position == export else position // self.frame.grid.tokens - 1
            for manager, held in zip(self._managers.state, store.columns[at], strict=True):
                pool.bind(held, (manager, request.digest(position)))

    def _allocate(self, pool: Pool, job: Job, end: int, admitted: bool, export: int | None) -> bool:
        """Take the blocks of a chunk, as the managers do: all of them fit, or none is taken."""
        store: Store = job.store
        if admitted:
            return self._allocate_first(pool, job, end, export)
        self._retire(pool, store, job.computed)
        opened = -(-end // self.frame.grid.tokens) - 1
        columns = [c for c in ([opened - 1] if export is not None else []) + [opened] if c not in store.columns]
        need = {m: max(0, -(-end // self._page[i]) - len(store.pages[m])) for m, i in self._managers.pages}
        if len(columns) * len(self._managers.state) + sum(need.values()) > pool.free_blocks:
            return False
        self._open(pool, store, columns, opened, need)
        return True

    def _allocate_first(self, pool: Pool, job: Job, end: int, export: int | None) -> bool:
        """A request is only let in where all of its prompt fits, beside the cached blocks that it takes over."""
        store: Store = job.store
        request, hit, grid = job.request, job.computed, self.frame.grid.tokens
        state, pages = self._managers.state, self._managers.pages
        taken: dict[int, list[int]] = {}
        for manager, index in pages:
            block = self._page[index]
            taken[manager] = [pool.find((manager, request.digest((p + 1) * block))) for p in range(hit // block)]
        held = [pool.find((m, request.digest(hit))) for m in state] if hit else []
        idle = sum(pool.idle(b) for blocks in [*taken.values(), held] for b in blocks)
        wanted = 0
        for length, exports in ((job.known, 0), (end, int(export is not None))):
            states = min(-(-length // grid) + self._drafts - (hit // grid), 1 + self._drafts + exports)
            here = len(state) * max(0, states)
            here += sum(-(-length // self._page[i]) - len(taken[m]) for m, i in pages)
            wanted = max(wanted, here)
        if wanted + self._rings + idle > pool.free_blocks:
            return False
        for blocks in (held, *taken.values()):
            pool.touch(blocks)
        store.pages = taken
        if held:
            store.columns[hit // grid - 1] = held
            store.retired = hit // grid - 1
        opened = -(-end // grid) - 1
        columns = [c for c in ([opened - 1] if export is not None else []) + [opened] if c not in store.columns]
        need = {m: -(-end // self._page[i]) - len(taken[m]) for m, i in pages}
        self._open(pool, store, columns, opened, need)
        store.allocated = pool.take(self._drafts * len(state))
        store.rings = pool.take(self._rings)
        return True

    def _open(self, pool: Pool, store: Store, columns: list[int], opened: int, need: dict[int, int]) -> None:
        running = max(store.columns, default=None)
        per_manager = [pool.take(len(columns)) for _ in self._managers.state]
        for number, column in enumerate(columns):
            store.columns[column] = [blocks[number] for blocks in per_manager]
        if opened in columns and running is not None:
            store.retired = running
        for manager, _ in self._managers.pages:
            store.pages[manager] += pool.take(need[manager])

    def _retire(self, pool: Pool, store: Store, computed: int) -> None:
        """Give back states that the request has left behind: those before the last computed token's block, and the one
        that the last step copied from."""
        grid = self.frame.grid.tokens
        first = (computed - 1) // grid
        behind = sorted((c for c in store.columns if c < first), reverse=True)
        if store.retired is not None and store.retired in store.columns and store.retired < -(-computed // grid) - 1:
            behind += [store.retired] if store.retired not in behind else []
        for number in range(len(self._managers.state)):
            pool.free([store.columns[c][number] for c in behind])
        for column in behind:
            del store.columns[column]

    def _lost(self, key: Key) -> None:
        """The last block of an entry in one group is gone, and with it the entry."""
        manager, digest = key
        self.evicted += 1
        if manager in self._managers.state:
            self.cache.states.pop(digest, None)
            return
        index = next(i for m, i in self._managers.pages if m == manager)
        self.cache.pages.pop((index, digest), None)
