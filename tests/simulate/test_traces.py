"""Traces as token ids, and the cache on them: small sessions made here, the recorded ones where they are at hand."""

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from statemark.cache.explain import WHY
from statemark.cli.traces import command
from statemark.errors import ConfigurationError
from statemark.simulate.replay import Replay, few_marks, ideal, together, unlimited
from statemark.simulate.traces import read_sessions

RECORDED = Path(os.environ.get("STATEMARK_TRACES", Path(__file__).parents[3] / "shared" / "traces" / "coding_agent"))


def entry(t, blocks, rest=0, out=10, **more):
    return {"t": t, "in": 64 * len(blocks) + rest, "out": out, "hash_ids": blocks, **more}


def write(folder, name, requests, **more):
    data = {"id": name, "block_size": 64, "tool_tokens": 100, "system_tokens": 60, "requests": requests, **more}
    (folder / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(data).encode()))


def chat(turns=6, first=40, step=9):
    """A chat that appends `step` blocks a turn; the ids of a real trace start at 1."""
    return [entry(10.0 * i, list(range(1, first + step * i + 1)), rest=7 * i % 64) for i in range(turns)]


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, "a", chat())
    write(tmp_path, "b", [entry(5.0, [1, 2, 3]), entry(6.0, [1, 2, 9], 5)])
    return tmp_path


def test_prompts_share_exactly_the_tokens_of_their_common_blocks(folder):
    for tails in ("appended", "unknown"):
        for session in read_sessions(folder, tails=tails):
            for one, two in pairwise(session):
                blocks = min(len(one.blocks), len(two.blocks))
                same = int(np.argmin(np.append(one.blocks[:blocks] == two.blocks[:blocks], False)))
                count = min(len(one.tokens), len(two.tokens))
                shared = int(np.argmin(np.append(one.tokens[:count] == two.tokens[:count], False)))
                whole = tails == "appended" and same == len(one.blocks) < len(two.blocks)
                assert shared == (len(one.tokens) if whole else 64 * same)


def test_sub_agents_come_in_order_of_time_and_are_agents_of_their_own(tmp_path):
    nested = {"t": 4.0, "agent_id": "x", "requests": [entry(1.0, [7, 8]), entry(9.0, [7, 8, 9])], "tool_tokens": 64}
    write(tmp_path, "a", [entry(0.0, [1]), nested, entry(6.0, [1, 2])])
    requests = read_sessions(tmp_path)[0]
    assert [(r.at, r.agent) for r in requests] == [(0.0, ""), (5.0, "/x"), (6.0, ""), (13.0, "/x")]


def test_the_ideal_reuses_every_shared_whole_block_and_computes_a_token_at_least(tmp_path):
    write(tmp_path, "a", [entry(0, [1, 2, 3]), entry(1, [1, 2, 3]), entry(2, [1, 2, 4], 9), entry(3, [5, 2, 3])])
    result = ideal(read_sessions(tmp_path)[0])
    assert result.computed == 192 + 1 + (64 + 9) + 192


def test_an_append_only_chat_computes_each_token_once(folder):
    session = read_sessions(folder)[0]
    replay = Replay(1 << 40)
    for request in session:
        replay.run(request)
    assert replay.result.computed == len(session[-1].tokens) + len(session) - 1, "each turn but the first: P - 1 on"
    replay.cache.check_integrity([])


def test_l7_a_junction_makes_the_third_request_a_full_hit(tmp_path):
    """The shared span ends off every grid; the first two requests can't know it, the third one gains."""
    write(tmp_path, "a", [entry(i, [*range(1, 31), *range(1000 * (i + 1), 1000 * (i + 1) + 20)]) for i in range(3)])
    replay = Replay(1 << 40)
    cached = []
    for request in read_sessions(tmp_path)[0]:
        before = replay.result.computed
        replay.run(request)
        cached.append(len(request.tokens) - (replay.result.computed - before))
    assert cached[0] == 0
    assert 64 * 30 / 2 <= cached[1] < 64 * 30, "history: at most half is lost"
    assert cached[2] == 64 * 30, "junction: nothing is"


@pytest.mark.parametrize("total", [1 << 26, 1 << 27, 1 << 29])
@pytest.mark.parametrize("policy", ["value", "lru"])
def test_a_small_cache_stays_whole(folder, total, policy):
    sessions = read_sessions(folder)
    replay = Replay(total, policy=policy)
    for session in sessions:
        for request in session:
            replay.run(request)
            replay.cache.check_integrity([])
            assert replay.cache.budget.used_bytes <= total
    assert replay.result.computed >= ideal(r for s in sessions for r in s).computed - 64 * replay.result.requests


def test_the_command_prints_the_table(folder):
    result = CliRunner().invoke(command, [str(folder), "--shares", "4,1", "--json"])
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    names = [row["name"] for row in out["rows"]]
    assert names[:4] == [
        "ideal, attention only",
        "marks without limit",
        "8 marks a session, value",
        "8 marks a session, lru",
    ]
    assert len(names) == 8
    assert all(row["computed"] > 0 for row in out["rows"])
    assert all(set(row["lost"]) == set(WHY) for row in out["rows"])
    table = CliRunner().invoke(command, [str(folder)]).stdout.splitlines()
    assert len(table) == 5


@pytest.mark.parametrize("damage", ["empty", "cut", "blocks", "fields"])
def test_what_is_no_trace_is_refused_by_name(tmp_path, damage):
    if damage == "cut":
        write(tmp_path, "a", chat())
        file = tmp_path / "a.json.gz"
        file.write_bytes(file.read_bytes()[:-20])
    elif damage == "blocks":
        write(tmp_path, "a", chat(), block_size=16)
    elif damage == "fields":
        write(tmp_path, "a", [{"t": 0.0, "hash_ids": [1]}])
    with pytest.raises(ConfigurationError, match="no traces" if damage == "empty" else "a.json.gz"):
        read_sessions(tmp_path)


recorded = pytest.mark.skipif(not RECORDED.is_dir(), reason="the recorded sessions are not here")


@pytest.fixture(scope="module")
def some(tmp_path_factory):
    """The sessions in which requests part most often."""
    folder = tmp_path_factory.mktemp("traces")
    for number in ("0087", "0121", "0326", "0330", "0338", "0495"):
        name = f"trace_{number}.json.gz"
        (folder / name).symlink_to(RECORDED / name)
    return read_sessions(folder)


@recorded
def test_point_1_on_recorded_sessions_without_limit_and_with_eight_marks(some):
    best = ideal(r for s in some for r in s).computed
    assert unlimited(some).computed <= 1.02 * best
    eight, lru = few_marks(some, 8).computed, few_marks(some, 8, "lru").computed
    assert eight <= 1.10 * best
    assert eight < lru


@recorded
@pytest.mark.slow
def test_never_worse_than_lru_on_recorded_sessions_that_share_a_cache(some):
    working_set = unlimited(some).peak_bytes
    for share in (16, 4, 1):
        value, lru = (together(some, working_set // share, policy).computed for policy in ("value", "lru"))
        assert value <= lru, share
