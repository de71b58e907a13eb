"""`statemark demo` as a person or a script calls it."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from statemark.cli import main
from statemark.demo import Stage, Tour
from statemark.demo.fault import WrongPosition
from statemark.engine.model_executor import ModelExecutor
from statemark.models.make_model import write_model
from statemark.models.shapes import config_json, named_shape

PARTS = ("1. A long document", "2. A second client", "3. The same requests", "4. What to type next")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["demo", "--threads", "1", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def without_times(figures: dict[str, Any]) -> dict[str, Any]:
    for turn in [*figures["turns"], *figures["second_client"]]:
        times = turn.pop("first_token_seconds")
        assert times.keys() == {"with_cache", "without_cache"}
        assert all(seconds > 0 for seconds in times.values())
    return figures


def test_json_is_one_object_that_differs_in_times_only(middling: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for _ in range(2):
        status, out, err = run(capsys, "--model", str(middling), "--json")
        assert (status, err, out.count("\n")) == (0, "", 1)
        runs.append(without_times(json.loads(out)))
    assert runs[0] == runs[1]
    figures = runs[0]
    assert figures["model"]["threads"] == 1
    assert len(figures["turns"]) == 4
    assert len(figures["second_client"]) == 1
    for turn in [*figures["turns"], *figures["second_client"]]:
        assert turn["digests_equal"] is True
        assert turn["digest_with_cache"] == turn["digest_without_cache"]
        assert turn["reused_tokens"] + turn["computed_tokens"] == turn["prompt_tokens"]
        assert turn["messages"][-1][2] == turn["prompt_tokens"]
    assert [turn["digest_is_that_without_cache"] for turn in figures["fault"]] == [False] * 5
    caught = figures["fault_with_stamps_checked"]
    assert caught["digest"] == figures["turns"][1]["digest_without_cache"]
    assert (caught["marks_dropped"], len(caught["log"])) == (1, 1)


def test_the_drawing_needs_neither_colour_nor_width(
    middling: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run(capsys, "--model", str(middling))
    assert (status, err) == (0, "")
    assert "\033" not in out
    assert max(map(len, out.split("\n"))) <= 80
    starts = [out.index(part) for part in PARTS]
    assert starts == sorted(starts)
    assert out.count(": equal\n") == 6
    assert out.count(" DIFFERENT") == 5
    for said in ("Turn 4", "Client 2", "| > |", "^", "marks after", "is damaged and was dropped", "statemark chat"):
        assert said in out


def test_a_narrow_terminal_without_unicode(
    middling: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["demo", "--threads", "1", "--model", str(middling)]) == 0
    sys.stdout.flush()
    assert max(map(len, raw.getvalue().decode("ascii").split("\n"))) <= 40


class AlwaysWrong(WrongPosition):
    def allocate(self, num_pages: int, num_slots: int) -> None:
        super().allocate(num_pages, num_slots)
        self.plant(1000, check_stamps=False)


def test_an_answer_that_depends_on_the_cache_is_an_error(
    middling: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tour is a check as well: it must not praise a cache that changes answers."""
    healthy = Stage.engine

    def engine(stage: Stage, executor: type[ModelExecutor] = ModelExecutor, *, caching: bool = True) -> Any:
        return healthy(stage, AlwaysWrong if executor is ModelExecutor else executor, caching=caching)

    monkeypatch.setattr(Stage, "engine", engine)
    status, out, err = run(capsys, "--model", str(middling), "--json")
    assert status == 1
    assert err == "error: 4 answers with the cache differ from those without it\n"
    assert [turn["digests_equal"] for turn in json.loads(out)["turns"]] == [True, False, False, False]


def test_a_missing_model_and_a_wrong_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--model", str(tmp_path / "none")], ["--isa", "sse2"], ["extra"]):
        status, out, err = run(capsys, *arguments)
        assert (status, out) == (2, "")
        assert err.startswith("error: ")
        assert "hint: " in err


def test_a_context_that_is_too_short_for_the_tour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "short"
    shape = replace(named_shape("qwen3.5-0.8b", "tiny"), positions=700)
    write_model(folder, config_json(shape, "bfloat16"), seed=1, dtype="bfloat16")
    status, out, err = run(capsys, "--model", str(folder))
    assert (status, out) == (2, "")
    assert "of 700 tokens of context 60 are left for it" in err
    assert "hint: name a model with a longer context" in err


def test_a_model_that_is_no_chat_model(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    for file in tiny.iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file)
    status, out, err = run(capsys, "--model", str(folder))
    assert (status, out) == (2, "")
    assert "this model can't render it: this model has no chat template" in err


def test_a_document_of_a_middling_context_is_smaller(middling: Path) -> None:
    tour = Tour(Stage(middling, threads=1))
    turns = list(tour.chat())
    assert 600 < turns[0].prompt_tokens < 800
    assert all(turn.equal for turn in [*turns, tour.second_client()])


@pytest.fixture(scope="module")
def bundled_figures(bundled_folder: Path) -> dict[str, Any]:
    """Of the tour as it is without options; `bundled_folder` skips where there are no weights."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["demo", "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_with_the_fault_the_bundled_model_says_something_else_as_fluently(bundled_figures: dict[str, Any]) -> None:
    assert bundled_figures["model"]["name"] == "bundled with statemark"
    turns = [*bundled_figures["turns"], *bundled_figures["second_client"]]
    for turn, faulty in zip(turns, bundled_figures["fault"], strict=True):
        assert re.fullmatch(r"[A-Z][\w: ]+\.", turn["answer"])
        assert re.fullmatch(r"[A-Z][\w: ]+\.", faulty["answer"])
        assert faulty["answer"] != turn["answer"]
    assert bundled_figures["fault_with_stamps_checked"]["answer"] == turns[1]["answer"]


def test_the_bundled_model_is_right_until_the_fault_makes_it_wrong(bundled_figures: dict[str, Any]) -> None:
    turns = [*bundled_figures["turns"], *bundled_figures["second_client"]]
    assert [turn["answer"] for turn in turns] == [turn["expected"] for turn in turns]
    assert sum(not faulty["right"] for faulty in bundled_figures["fault"]) >= 3
    assert bundled_figures["fault_with_stamps_checked"]["right"]
