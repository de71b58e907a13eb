"""The oracle and the rule `vllm-0.32` against vLLM 0.32's own scheduler split and cache manager, event by event.

Runs where vLLM is installed:  python -m pytest tests/align -m vllm
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from statemark.align.groups import Role
from statemark.align.oracle import CacheGroup, Chunk, Job
from statemark.align.positions import Prefill, export_is_possible, export_position
from statemark.align.rules import StockRule
from tests.align.histories import History, Request, Server, histories, play, server, servers

vllm = pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm
QUIET = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def _scheduler(machine: Server) -> Any:
    frame = machine.frame
    return SimpleNamespace(
        cache_config=SimpleNamespace(block_size=frame.config_minimum.tokens),
        block_size=frame.scheduler_block.tokens,
        hash_block_size=frame.hash_unit.tokens,
        mamba_partial_cache_hit=frame.fine,
        mamba_shared_prefix_checkpoint=frame.junction_checkpoint,
        use_eagle_block_drop=frame.drop,
        mamba_has_prefill_checkpoint_blocks=frame.checkpoint_step is not None,
        mamba_prefill_checkpoint_alignment=frame.checkpoint_step,
        max_num_scheduled_tokens=frame.step_limit,
        scheduler_config=SimpleNamespace(long_prefill_token_threshold=frame.long_prefill_threshold),
        num_prefill_lookahead=frame.lookahead,
    )


@QUIET
@given(machine=servers(), data=st.data())
def test_the_split_is_vllms(machine: Server, data: st.DataObject) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    frame = replace(machine.frame, long_prefill_threshold=data.draw(st.sampled_from([0, 0, 7, 40])))
    prompt = data.draw(st.integers(1, 8 * frame.grid.tokens))
    known = prompt + data.draw(st.sampled_from([0, 0, 1, 9]))
    start = data.draw(st.integers(0, known - 1))
    offer = data.draw(st.integers(1, known - start))
    junction = data.draw(st.one_of(st.just(0), st.integers(1, known)))
    scheduler = _scheduler(replace(machine, frame=frame))
    request = SimpleNamespace(
        num_computed_tokens=start, num_prompt_tokens=prompt, num_tokens=known, shared_prefix_boundary=junction
    )
    theirs = Scheduler._mamba_block_aligned_split(scheduler, request, offer)
    theirs = Scheduler._reserve_prefill_lookahead(scheduler, request, start, theirs)
    assert StockRule(frame).cut(Prefill(prompt, known, junction), start, offer) == theirs


class Replica:
    """vLLM's cache manager, driven through the chunks of a played history; tracks what each state block holds."""

    def __init__(self, machine: Server) -> None:
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import init_none_hash
        from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

        frame = machine.frame
        init_none_hash(_digest)
        groups = [
            KVCacheGroupSpec([f"layer {i}"], _spec(g, machine), is_eagle_group=g.dropped)
            for i, g in enumerate(machine.groups)
        ]
        self.state_group = next(i for i, g in enumerate(machine.groups) if g.is_state)
        self.manager = KVCacheManager(
            KVCacheConfig(
                num_blocks=100_000,
                kv_cache_tensors=[],
                kv_cache_groups=groups,
                prefix_cache_retention_interval=frame.retention,
            ),
            max_model_len=100_000,
            scheduler_block_size=frame.scheduler_block.tokens,
            hash_block_size=frame.hash_unit.tokens,
            use_eagle=frame.drop,
            num_prefill_lookahead=frame.lookahead,
        )
        self.frame = frame
        self.requests: dict[str, Any] = {}
        self.holds: dict[int, int] = {}
        self.hits: dict[str, list[int]] = {}
        self.live: set[str] = set()

    def request(self, job: Job) -> Any:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher
        from vllm.v1.request import Request

        if job.name not in self.requests:
            self.requests[job.name] = Request(
                job.name,
                tokens(job.prompt.digest(len(job.prompt))),
                SamplingParams(max_tokens=100),
                None,
                block_hasher=get_request_block_hasher(self.frame.hash_unit.tokens, _digest),
            )
            self.hits[job.name] = []
        return self.requests[job.name]

    def free(self, name: str) -> None:
        if name in self.live:
            self.live.discard(name)
            self.manager.free(self.requests[name])
            self.requests[name].num_computed_tokens = 0

    def chunk(self, job: Job, chunk: Chunk) -> None:
        request = self.request(job)
        if chunk.admitted:
            blocks, hit, junction = self.manager.get_computed_blocks(request)
            request.shared_prefix_boundary = junction
            self.hits[job.name].append(hit)
            assert hit == chunk.start
            done = self.manager.allocate_slots(
                request, chunk.count, num_new_computed_tokens=hit, new_computed_blocks=blocks
            )
            request.num_computed_tokens = hit
            self.live.add(job.name)
        else:
            assert request.num_computed_tokens == chunk.start
            done = self.manager.allocate_slots(request, chunk.count)
        assert done is not None
        self._forward(request, chunk.start, chunk.count, chunk.reached)
        request.num_computed_tokens = chunk.reached
        grown = chunk.reached + 1 - request.num_tokens
        if grown > 0:
            length = request.num_tokens - request.num_prompt_tokens
            name = f"{job.name}'s output"
            request.append_output_token_ids(tokens(((name, length + grown),))[length:])

    def _forward(self, request: Any, start: int, count: int, real: int) -> None:
        grid, end = self.frame.grid.tokens, start + count
        manager = self.manager.coordinator.single_type_managers[self.state_group]
        for source, copy in manager.take_pending_cow_copies():
            self.holds[copy.block_id] = self.holds[source.block_id]
        table = manager.req_to_blocks[request.request_id]
        decoding = start >= max(request.num_prompt_tokens, request.num_tokens - 1)
        checkpoint = manager._checkpoints.get(request.request_id)
        if checkpoint is not None and not decoding:
            self.holds[table[checkpoint[1]].block_id] = checkpoint[0]
        block = table[-(-end // grid) - 1]
        assert not block.is_null
        self.holds[block.block_id] = real
        boundary = real // grid * grid
        if decoding and count > 1 and boundary > start and not table[boundary // grid - 1].is_null:
            self.holds[table[boundary // grid - 1].block_id] = boundary

    def published(self, job: Job, position: int) -> int | None:
        """What the cache's block for the first `position` tokens of a request really holds."""
        request, pool = self.requests[job.name], self.manager.block_pool
        index = position // self.frame.hash_unit.tokens - 1
        if index >= len(request.block_hashes):
            return None
        found = pool.get_cached_block(request.block_hashes[index], [self.state_group])
        return None if found is None else self.holds[found[0].block_id]


def _spec(group: CacheGroup, machine: Server) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    heads = {"num_kv_heads": 1, "head_size": 2, "dtype": torch.float32}
    if group.role is Role.STATE:
        step = machine.frame.checkpoint_step
        return MambaSpec(
            block_size=group.block,
            shapes=((1,),),
            dtypes=(torch.float32,),
            mamba_cache_mode="align",
            num_speculative_blocks=machine.drafts,
            num_prefill_checkpoint_blocks=int(step is not None),
            prefill_checkpoint_alignment=step,
        )
    if group.window is not None:
        return SlidingWindowSpec(block_size=group.block, sliding_window=group.window, **heads)
    return FullAttentionSpec(block_size=group.block, **heads)


def tokens(parts: tuple[tuple[str, int], ...]) -> list[int]:
    return [zlib.crc32(name.encode()) % 100_000 * 20_000 + i for name, length in parts for i in range(length)]


@QUIET
@given(history=histories())
def test_hits_and_state_contents_are_vllms(history: History) -> None:
    compare(replace(history, evictions=()))


@pytest.mark.parametrize("arrives", [1, 2, 3])
def test_a_tail_that_moves_to_a_copy_is_not_hit_in_that_step(arrives: int) -> None:
    """A prompt's state at 40 of 45 tokens is entered in its second step, and moves aside in its third."""
    first = Request((("stem", 45),), outputs=6)
    compare(History(server(32, 100, match_unit=8), (first, Request((("stem", 45), ("own", 7)), 2, arrives))))


def compare(history: History) -> None:
    """Every hit at admission, and for every prefix of every request what the state cache holds for it."""
    outcome = play(history, "vllm-0.32", limit=400)
    replica = Replica(history.server)
    jobs = {job.name: job for job in outcome.jobs}
    steps = outcome.world.steps
    for number, step in enumerate(steps):
        replica.manager.new_step_starts()
        for chunk in step.chunks:
            if chunk.admitted and chunk.job in replica.requests:
                replica.free(chunk.job)  # it had been preempted
            replica.chunk(jobs[chunk.job], chunk)
        later = {chunk.job for step in steps[number + 1 :] for chunk in step.chunks}
        for name in [n for n in replica.live if n not in later]:
            replica.free(name)
    for name, job in jobs.items():
        if name not in replica.requests:
            continue
        assert replica.hits[name] == job.hits
        unit = history.server.frame.hit_unit.tokens  # entries off the hit unit exist, but no lookup can return them
        for position in range(unit, job.known, unit):
            entry = outcome.world.cache.states.get(job.tokens.digest(position))
            assert replica.published(job, position) == (entry.content.position if entry else None)


def test_the_internal_checkpoint_test_is_vllms() -> None:
    from vllm.v1.kv_cache_interface import get_mamba_prefill_checkpoint_position, is_mamba_prefill_checkpoint_valid

    for step in (1, 16):
        frame = server(32, 96, match_unit=8, checkpoint_step=step).frame
        for start in range(0, 100, 3):
            for end in range(start + 1, 140):
                view = Prefill(end, end)
                position = get_mamba_prefill_checkpoint_position(end, frame.hit_unit.tokens, False)
                assert export_position(frame, view) == position
                theirs = is_mamba_prefill_checkpoint_valid(start, end, position, 8, 32, step)
                assert export_is_possible(frame, start, end, position, 32) == theirs
