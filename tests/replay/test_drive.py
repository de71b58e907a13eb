"""Whole replays against servers in this process: order, errors by kind, resume, preflight. No figure is a bound."""

from __future__ import annotations

import asyncio
import json

import pytest

from statemark.cli import main
from statemark.client import Session
from statemark.replay.preflight import prove
from tests.client.stand_in import StandIn
from tests.server.fake_model import FakeModel
from tests.server.live_server import running

AGENT = ["--synthetic", "agent", "--agent", "sessions=3,turns=3,shared=200,user=20,answer=6,reasoning=3,think=0.01"]


def replay(*arguments: str) -> int:
    return main(["replay", *AGENT, *arguments])


def test_figures_of_an_agent_workload(capsys, tmp_path):
    out, page = tmp_path / "run.jsonl", tmp_path / "run.html"
    with running(FakeModel) as server:
        assert replay("--target", server.url, "--out", str(out), "--page", str(page), "--json") == 0
        data = json.loads(capsys.readouterr().out)
        (figures,) = data["targets"].values()
        assert (figures["completed"], figures["failed"]) == (9, 0)
        assert figures["total_output_tokens"] == 9 * 9
        # The stand-in reuses every beginning that it has seen: nothing that could be reused is lost.
        assert figures["cached_tokens"] >= figures["ideal_cached_tokens"] > 0
        assert [row["turn"] for row in figures["turns"]] == [1, 2, 3]
        assert data["head"]["arms"][0]["fingerprint"] == "statemark-test"
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        sent = [(r["record"]["session"], r["record"]["turn"]) for r in lines[1:]]
        assert len(sent) == 9
        for name in {s for s, _ in sent}:
            assert [t for s, t in sent if s == name] == [1, 2, 3]
    assert "<svg" in page.read_text()


def test_resume_sends_only_sessions_that_are_missing(capsys, tmp_path):
    out = tmp_path / "run.jsonl"
    model = FakeModel()
    with running(lambda: model) as server:
        assert replay("--target", server.url, "--out", str(out), "--concurrency", "1") == 0
        lines = out.read_text().splitlines()
        out.write_text("\n".join(lines[:6]) + '\n{"rec')  # a session, two requests of the next, and half a line
        before = len(model.seen)
        assert replay("--target", server.url, "--out", str(out), "--concurrency", "1") == 2
        assert "exists" in capsys.readouterr().err
        assert replay("--target", server.url, "--out", str(out), "--concurrency", "1", "--resume", "--json") == 0
        data = json.loads(capsys.readouterr().out)
        assert next(iter(data["targets"].values()))["completed"] == 9
        answered = [r for r in model.seen[before:] if len(r.prompt_token_ids) > 150 and r.params.max_tokens == 9]
        assert len(answered) == 6


def test_resume_sends_again_what_failed_and_time_goes_on(capsys, tmp_path):
    out = tmp_path / "run.jsonl"
    with running(FakeModel) as server:
        assert replay("--target", server.url, "--out", str(out), "--concurrency", "1") == 0
        head, *lines = [json.loads(line) for line in out.read_text().splitlines()]
        lines[-1]["record"] |= {
            "error": "down",
            "words": "nobody answers",
            "arrivals": [],
        }  # the server died at the end
        out.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
        assert replay("--target", server.url, "--out", str(out), "--concurrency", "1", "--resume", "--json") == 0
        data = json.loads(capsys.readouterr().out.splitlines()[-1])
        (figures,) = data["targets"].values()
        assert (figures["completed"], figures["failed"]) == (9, 0)
        records = [json.loads(line)["record"] for line in out.read_text().splitlines()[1:]]
        assert max(r["at"] + r["seconds"] for r in records[:6]) <= min(r["at"] for r in records[6:])


def test_runs_of_several_starts_are_arms_that_are_compared(capsys, tmp_path):
    for arm in ("old", "new"):
        for start in ("1", "2", "3"):
            with running(FakeModel) as server:  # each at an address of its own
                assert replay("--target", server.url, "--out", str(tmp_path / f"{arm}-{start}.jsonl")) == 0
    capsys.readouterr()
    arms = [f"{arm}=" + ",".join(str(tmp_path / f"{arm}-{n}.jsonl") for n in (1, 2, 3)) for arm in ("old", "new")]
    assert main(["replay", "--compare", arms[0], "--compare", arms[1], "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["targets"]) == {"old", "new"}
    found = data["compare"]["new"]
    assert (found["pairs"], found["starts"], found["rounds"]) == (27, 3, 3)


def test_a_run_of_two_targets_stays_two_arms(capsys, tmp_path):
    out = tmp_path / "run.jsonl"
    with running(FakeModel) as one, running(FakeModel) as two:
        assert replay("--target", one.url, "--target", two.url, "--out", str(out)) == 0
        capsys.readouterr()
        assert main(["replay", "--compare", str(out), "--json"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert set(data["targets"]) == {f"run {one.url}", f"run {two.url}"}


def test_where_nothing_was_answered_the_exit_code_says_so(capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"messages": [{"role": "user", "content": "!fail"}], "max_tokens": 4}) + "\n")
    with running(FakeModel) as server:
        assert main(["replay", str(log), "--target", server.url]) == 1
    assert "1 failed, first: " in capsys.readouterr().out


def test_what_a_log_of_messages_could_reuse_is_in_the_servers_tokens(capsys, tmp_path):
    first = [{"role": "user", "content": "word " * 80}, {"role": "assistant", "content": "answer " * 20}]
    log = tmp_path / "log.jsonl"
    rows = [first[:1], [*first, {"role": "user", "content": "more"}]]
    log.write_text("".join(json.dumps({"session": "s", "timestamp": i, "messages": m, "max_tokens": 4}) + "\n"
                           for i, m in enumerate(rows)))  # fmt: skip
    with running(FakeModel) as server:
        assert main(["replay", str(log), "--target", server.url, "--think-cap", "0", "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)["targets"].values()
    # A token of this server is a byte, so most of the first prompt's 400 can be met again.
    assert 330 < figures["ideal_cached_tokens"] < 480


def test_two_targets_are_paired(capsys):
    with running(FakeModel) as one, running(FakeModel) as two:
        assert replay("--target", one.url, "--target", two.url, "--rounds", "2", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    (found,) = data["compare"].values()
    assert (found["pairs"], found["rounds"]) == (18, 2)
    assert found["ttft"]["low"] <= found["ttft"]["ratio"] <= found["ttft"]["high"]


def test_the_wrong_arm_is_refused_before_anything_is_sent(capsys):
    with running(FakeModel) as server:
        assert replay("--target", server.url, "--expect", "patched") == 2
    assert "not the expected arm" in capsys.readouterr().err


def test_a_server_with_no_room_yet_is_asked_again_who_it_is():
    async def go() -> str:
        stand_in = StandIn(busy=2)
        async with Session("http://server", transport=stand_in.transport()) as session:
            return (await prove(session, None)).name

    assert asyncio.run(go()) == "vLLM 1.2"


def test_failures_are_counted_by_kind(capsys, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({"messages": [{"role": "user", "content": text}], "max_tokens": 4}) + "\n"
                           for text in ("fine", "!fail", "fine as well")))  # fmt: skip
    with running(FakeModel) as server:
        assert main(["replay", str(log), "--target", server.url, "--json"]) == 0
    (figures,) = json.loads(capsys.readouterr().out)["targets"].values()
    assert (figures["completed"], figures["errors"]) == (2, {"failed": 1})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "http://127.0.0.1:1"], "nobody answers"),
        ([], "nothing to ask"),
        (["--target", "http://127.0.0.1:1", "--resume"], "nothing to go on from"),
        (["--target", "http://127.0.0.1:1", "--agent", "wings=2"], "is no size"),
        (["--compare", "/nowhere/a.jsonl"], "can't be read"),
    ],
)
def test_bad_input(capsys, arguments, words):
    assert replay(*arguments) == 2
    assert words in capsys.readouterr().err
