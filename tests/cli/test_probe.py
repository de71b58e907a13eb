"""`statemark probe` as an operator runs it: exit codes, JSON, the page, and the words where nothing can be asked."""

from __future__ import annotations

import json
from functools import partial

from statemark.cli import main
from statemark.client import Session
from tests.client.stand_in import StandIn
from tests.server.fake_model import FakeModel
from tests.server.live_server import running


def test_the_verdict_is_the_exit_code(capsys, tmp_path):
    """The stand-in model reuses prefixes whatever their salt is, and so it is called contaminated."""
    page = tmp_path / "probe.html"
    with running(FakeModel) as server:
        code = main(["probe", server.url, "--limit", "300", "--json", "--page", str(page)])
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert (code, data["verdict"], data["cells_that_show_it"]) == (4, "contaminated", ["salt"])
    assert "prompt tokens if blocks" in err
    assert "CONTAMINATED" in page.read_text()


def test_a_probe_that_breaks_off_keeps_what_it_has_and_goes_on(capsys, tmp_path, monkeypatch):
    kept = tmp_path / "probe.jsonl"
    command = ["probe", "http://server", "--limit", "640", "--no-mates", "--resume", str(kept)]

    def answered_by(stand_in: StandIn) -> None:
        monkeypatch.setattr("statemark.cli.probe.Session", partial(Session, transport=stand_in.transport()))

    answered_by(StandIn(breaks_after=30))
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "out of memory" in err
    assert f"cells kept in {kept}: the same command goes on from there" in err
    cells = len(kept.read_text().splitlines())
    assert cells > 3
    rest = StandIn()
    answered_by(rest)
    assert main(command) == 0
    assert "EXACT" in capsys.readouterr().out
    whole = StandIn()
    answered_by(whole)
    assert main([*command[:-2], "--page", str(tmp_path / "page.html")]) == 0
    assert len(rest.bodies) < len(whole.bodies) - 15


def test_nobody_there(capsys):
    assert main(["probe", "http://127.0.0.1:1"]) == 2
    err = capsys.readouterr().err
    assert "error: nobody answers at http://127.0.0.1:1" in err
    assert "hint:" in err


def test_a_limit_that_does_not_fit(capsys):
    with running(FakeModel) as server:
        assert main(["probe", server.url, "--limit", "100000"]) == 2
    assert "don't fit" in capsys.readouterr().err


def test_an_empty_document(capsys, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    assert main(["probe", "http://127.0.0.1:1", "--document", str(empty)]) == 2
    assert "is empty" in capsys.readouterr().err
