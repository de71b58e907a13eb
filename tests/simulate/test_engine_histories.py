"""The whole engine under any history of submit, step, abort, finish, evict and restart, with pools that are too small.

The toy executor's answers depend on everything that a cache could get wrong, so each request that ends is held to the
same request alone, cold, one token a step.
"""

from functools import lru_cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine import harness
from tests.engine.schedules import BLOCKS
from tests.toy import ToyExecutor

PAGE, SLOT = 64, 256
LONGEST = 140


@lru_cache(maxsize=4096)
def oracle(request):
    return harness.cold(request, ToyExecutor(vocab_size=100))


class Histories(RuleBasedStateMachine):
    @initialize(pages=st.integers(9, 24), slots=st.integers(1, 8), seqs=st.integers(1, 4), budget=st.integers(4, 80))
    def start(self, pages, slots, seqs, budget):
        self.options = {
            "cache_bytes": pages * PAGE + slots * SLOT,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": max(seqs, budget),
            "max_model_len": LONGEST,
        }
        self.count = 0
        self.begin()

    def begin(self):
        self.engine = harness.engine(ToyExecutor(vocab_size=100), **self.options)
        self.open = {}
        self.seen = {}

    @rule(
        blocks=st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4),
        turns=st.lists(st.integers(1, LONGEST), max_size=3),
        salt=st.sampled_from(["", "", "other"]),
        use_cache=st.sampled_from([True, True, True, False]),
        tokens=st.integers(1, 8),
    )
    def submit(self, blocks, turns, salt, use_cache, tokens):
        prompt = sum(blocks, ())[: LONGEST - 8]
        turns = tuple(sorted(t for t in turns if t < len(prompt)))
        name = f"r{self.count}"
        self.count += 1
        self.open[name] = harness.request(name, prompt, turns=turns, salt=salt, use_cache=use_cache, max_tokens=tokens)
        self.engine.add_request(self.open[name])

    @precondition(lambda self: self.open)
    @rule(times=st.integers(1, 12))
    def steps(self, times):
        for _ in range(times):
            if self.engine.has_work():
                harness.step(self.engine, self.seen)
        self.settle()

    def settle(self):
        for name in [name for name in self.open if self.seen.get((name, 0)) and self.seen[(name, 0)].finish]:
            got, right = self.seen[(name, 0)], oracle(self.open.pop(name))
            assert (got.finish, got.tokens) == (right.finish, right.tokens)
            assert got.digest() == right.digest()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.abort(name)
        del self.open[name]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data):
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.finish(name, 0)
        del self.open[name]

    @rule(times=st.integers(1, 3))
    def evict(self, times):
        for _ in range(times):
            self.engine.cache._evict_one()

    @rule()
    def forget(self):
        self.engine.cache.reset()

    @rule()
    def restart(self):
        self.begin()

    @invariant()
    def whole(self):
        if hasattr(self, "engine"):
            self.engine.check_integrity()
            budget = self.engine.cache.budget
            assert budget.used_bytes <= budget.committed_bytes <= budget.total

    def teardown(self):
        if hasattr(self, "engine"):
            harness.drain(self.engine, self.seen)
            self.settle()
            assert not self.open
            self.engine.cache.reset()
            assert self.engine.cache.budget.used_bytes == 0, "something leaked"
            assert len(self.engine.cache.order) == 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
