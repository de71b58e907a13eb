"""`statemark probe` as an operator runs it: exit codes, JSON, the page, and the words where nothing can be asked."""

from __future__ import annotations

import json

from statemark.cli import main
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
