"""The whole engine under any history of submit, step, abort, finish, evict, spill, restore and restart, with pools
and a directory that are too small.

The toy executor's answers depend on everything that a cache could get wrong, so each request that ends is held to the
same request alone, cold, one token a step.
"""

import os
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from statemark.cache.disk.pace import Always
from statemark.engine.disk import DiskOptions
from tests.engine import harness
from tests.engine.schedules import BLOCKS
from tests.toy import ToyExecutor

PAGE, SLOT = 64, 256
LONGEST = 140


@lru_cache(maxsize=4096)
def oracle(request):
    return harness.cold(request, ToyExecutor(vocab_size=100))


class Steady(Always):
    """Nothing is measured, so that the same history writes the same bytes."""

    def step(self, tokens, sequences, seconds):
        pass


class Histories(RuleBasedStateMachine):
    @initialize(
        pages=st.integers(9, 24),
        slots=st.integers(1, 8),
        seqs=st.integers(1, 4),
        budget=st.integers(4, 80),
        limit=st.sampled_from([None, 10_000, 30_000, 1 << 30]),
    )
    def start(self, pages, slots, seqs, budget, limit):
        self.folder = Path(tempfile.mkdtemp())
        self.limit = limit
        self.damaged = False
        self.options = {
            "cache_bytes": pages * PAGE + slots * SLOT,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": max(seqs, budget),
            "max_model_len": LONGEST,
        }
        self.count = 0
        self.prompts = []
        self.begin()

    def begin(self):
        disk = None
        if self.limit is not None:
            disk = DiskOptions(path=self.folder, limit=self.limit, pace=Steady(), background=False)
        self.engine = harness.engine(ToyExecutor(vocab_size=100), disk=disk, **self.options)
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
        self.send(sum(blocks, ()), turns, salt, use_cache, tokens)

    @precondition(lambda self: self.prompts)
    @rule(
        data=st.data(), cut=st.integers(1, LONGEST), more=st.sampled_from([(), (), *BLOCKS]), tokens=st.integers(1, 8)
    )
    def ask_again(self, data, cut, more, tokens):
        """The same again, cut short or edited, or gone on with."""
        prompt, turns, salt = data.draw(st.sampled_from(self.prompts))
        self.send(prompt[: max(cut, len(prompt) // 2)] + more, turns, salt, True, tokens)

    def send(self, prompt, turns, salt, use_cache, tokens):
        prompt = prompt[: LONGEST - 8]
        turns = tuple(sorted(t for t in turns if t < len(prompt)))
        self.prompts = [*self.prompts[-5:], (prompt, turns, salt)]
        name = f"r{self.count}"
        self.count += 1
        self.open[name] = harness.request(name, prompt, turns=turns, salt=salt, use_cache=use_cache, max_tokens=tokens)
        self.engine.add_request(self.open[name])

    @precondition(lambda self: self.open)
    @rule(times=st.integers(1, 40))
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

    @precondition(lambda self: len(self.engine.cache.index))
    @rule(times=st.integers(1, 3))
    def evict(self, times):
        for _ in range(times):
            self.engine.cache._evict_one()

    @precondition(lambda self: self.limit is not None and self.engine.disk.pins())
    @rule(count=st.integers(1, 5))
    def spill(self, count):
        self.engine.disk.spill.writer.work(count)

    @precondition(lambda self: self.limit is not None and self.engine.disk.lent()[1])
    @rule()
    def read(self):
        """What the disk has of the next prompt arrives while others run."""
        self.engine.disk.reader.work()

    @precondition(lambda self: self.limit is not None and len(self.engine.cache.index))
    @rule()
    def restore(self):
        """All marks leave memory, so whatever is asked next comes from disk."""
        self.engine.disk.spill.writer.work()
        self.engine.disk.spill.poll()
        while self.engine.cache._evict_one():
            pass

    @precondition(lambda self: self.limit is not None and len(self.engine.disk.folder))
    @rule(which=st.integers(0, 99), where=st.integers(0, 999), flip=st.integers(1, 255), cut=st.sampled_from([1, 1, 2]))
    def damage(self, which, where, flip, cut):
        """`which` of the files has a byte changed at `where` thousandths; what is drawn must not depend on files."""
        files = sorted(self.folder.glob("*.mark"))
        if files:
            self.damaged = True
            path = files[which % len(files)]
            raw = bytearray(path.read_bytes())
            raw[where * len(raw) // 1000] ^= flip
            path.write_bytes(raw[: len(raw) // cut])

    @precondition(lambda self: self.limit is not None and len(self.engine.disk.folder))
    @rule()
    def kill(self):
        """A writer dies in the middle, and with it the process."""
        (self.folder / f".{'a' * 32}.1.{self.count}.tmp").write_bytes(b"half")
        self.begin()

    @precondition(lambda self: len(self.engine.cache.index))
    @rule()
    def forget(self):
        self.engine.cache.reset()

    @precondition(lambda self: len(self.engine.cache.index))
    @rule()
    def restart(self):
        self.engine.close()
        self.begin()

    @invariant()
    def whole(self):
        if hasattr(self, "engine"):
            self.engine.check_integrity()
            budget = self.engine.cache.budget
            assert budget.used_bytes <= budget.committed_bytes <= budget.total
            stored = sum(path.stat().st_size for path in self.folder.glob("*.mark"))
            assert stored <= (self.limit or 0), "more bytes on disk than allowed"

    def teardown(self):
        if hasattr(self, "engine"):
            harness.drain(self.engine, self.seen)
            self.settle()
            assert not self.open
            self.engine.cache.reset()
            assert self.engine.cache.budget.used_bytes == 0, "something leaked"
            assert len(self.engine.cache.order) == 0
            assert self.damaged or os.listdir(self.folder) == [], "a file leaked"  # a damaged one may be nobody's
            shutil.rmtree(self.folder)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
