"""Traces of every kind become sessions whose prompts share what the trace says, and nothing else."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemark.errors import ConfigurationError
from statemark.replay.ideal import Ideal
from statemark.replay.readers import read_trace
from statemark.replay.synthetic import Agent, agent_sessions
from statemark.replay.workload import SessionPlan, Turn, Vocabulary, fitted

small = st.lists(st.integers(0, 3), min_size=1, max_size=70)


def arrays(prompts):
    return [np.array(p, dtype=np.int64) for p in prompts]


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(st.lists(small, max_size=12))
def test_ideal_is_the_longest_beginning_within_its_grain(prompts):
    ideal, seen = Ideal(), []
    for prompt in arrays(prompts):
        best = min(max((common(prompt, old) for old in seen), default=0), len(prompt) - 1)
        found = ideal.cached("", prompt)
        assert best - 16 < found <= best
        seen.append(prompt)


@given(small)
def test_ideal_keeps_salts_apart_and_leaves_one_token(prompt):
    ideal, (tokens,) = Ideal(), arrays([prompt])
    assert ideal.cached("a", tokens) == 0
    assert ideal.cached("b", tokens) == 0
    assert ideal.cached("a", tokens) == len(tokens) - 1


@given(small, small, st.integers(0, 9))
def test_equal_tokens_become_equal_ids_and_prefixes_stay(a, b, seed):
    vocabulary = Vocabulary(range(5, 4000), seed)
    x, y = (vocabulary.ids(t) for t in arrays([a, b]))
    assert common(x, y) == common(a, b)
    assert all(5 <= i < 4000 for i in x)


def test_synthetic_agents_share_what_they_say_and_drop_reasoning():
    agent = Agent(sessions=3, turns=4, shared=300, user=20, answer=10, reasoning=50, header=4)
    plans = agent_sessions(agent, seed=5)
    assert [len(p.turns) for p in plans] == [4, 4, 4]
    assert common(plans[0].turns[0].tokens, plans[1].turns[0].tokens) == 300
    for plan in plans:
        for before, after in zip(plan.turns, plan.turns[1:], strict=False):
            assert common(before.tokens, after.tokens) == len(before.tokens) - agent.header
            assert len(after.tokens) == len(before.tokens) + 20 + 10
        assert all(t.output == 60 for t in plan.turns)
    again = agent_sessions(agent, seed=5)
    assert all(np.array_equal(t.tokens, u.tokens) for p, q in zip(plans, again, strict=True)
               for t, u in zip(p.turns, q.turns, strict=True))  # fmt: skip


def test_requests_that_do_not_fit_are_counted():
    turns = tuple(Turn(np.arange(n, dtype=np.int64), 50) for n in (10, 90, 20))
    kept, dropped = fitted([SessionPlan("s", turns)], 100, None)
    assert ([len(t.tokens) for t in kept[0].turns], dropped) == ([10], 2)
    kept, dropped = fitted([SessionPlan("s", turns)], 100, 5)
    assert (len(kept[0].turns), kept[0].turns[0].output, dropped) == (3, 5, 0)


# --- readers ------------------------------------------------------------------------------------------------------


def write(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" if not isinstance(r, str) else r + "\n" for r in rows))
    return path


def test_mooncake(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1200, "output_length": 7, "hash_ids": [1, 2, 3]},
        {"timestamp": 2500, "input_length": 1100, "output_length": 9, "hash_ids": [1, 2, 9]},
    ]
    plans, notes = read_trace(write(tmp_path / "m.jsonl", rows))
    a, b = (p.turns[0] for p in plans)
    assert not notes
    assert [p.at for p in plans] == [0.0, 2.5]
    assert (len(a.tokens), len(b.tokens), common(a.tokens, b.tokens), a.output) == (1200, 1100, 1024, 7)
    packed = tmp_path / "m.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "m.jsonl").read_bytes()))
    assert len(read_trace(packed)[0]) == 2


def test_request_logs(tmp_path):
    rows = [
        {"timestamp": 10.0, "session": "s", "body": {"prompt": [1, 2, 3], "max_tokens": 5}},
        {"timestamp": 12.0, "session": "s", "body": {"prompt": [1, 2, 3, 4], "max_tokens": 6}},
        {"timestamp": 11.0, "body": {"messages": [{"role": "user", "content": "hi"}]}},
    ]
    plans, _ = read_trace(write(tmp_path / "o.jsonl", rows))
    session = next(p for p in plans if p.name == "s")
    assert [list(t.tokens) for t in session.turns] == [[1, 2, 3], [1, 2, 3, 4]]
    assert [t.wait for t in session.turns] == [0.0, 2.0]
    chat = next(p for p in plans if p.name != "s")
    assert chat.turns[0].messages == ({"role": "user", "content": "hi"},)


def test_recorded_traces(tmp_path):
    line = {"format": "statemark-trace-1", "session": "x", "block": 64, "output": 4}
    rows = [
        {**line, "at": 0.0, "tokens": 150, "blocks": ["a", "b"]},
        {**line, "at": 3.0, "think": 1.5, "tokens": 210, "blocks": ["a", "b", "c"]},
    ]
    (plan,), _ = read_trace(write(tmp_path / "r.jsonl", rows))
    a, b = plan.turns
    assert (len(a.tokens), len(b.tokens), common(a.tokens, b.tokens)) == (150, 210, 128)
    assert (b.wait, b.after_end) == (1.5, True)


def test_broken_lines_are_told_and_the_rest_is_read(tmp_path):
    good = {"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}
    rows = [good, "{broken", "[]", {"nothing": 1}, {**good, "input_length": "x"}, good]
    plans, notes = read_trace(write(tmp_path / "b.jsonl", rows))
    assert len(plans) == 2
    assert "line 2" in notes[0]
    assert any("1 request left out for fields that make no sense" in n for n in notes)


@pytest.mark.parametrize("rows", [[], ["x"], [{"a": 1}], [{"hash_ids": [], "input_length": 1}, {"prompt": "x"}]])
def test_files_that_are_no_trace(tmp_path, rows):
    with pytest.raises(ConfigurationError):
        read_trace(write(tmp_path / "n.jsonl", rows))


def test_nothing_there(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no trace"):
        read_trace(tmp_path / "nothing")
