"""`generate` and `chat` over a fake model: what goes to stdout, what to stderr, and how turns follow each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statemark.cli.chat import command as chat
from statemark.cli.frame import run
from statemark.cli.generate import command as generate
from statemark.server.loaded import LoadedModel
from tests.server.fake_model import FakeModel


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel()
    monkeypatch.setattr(LoadedModel, "load", lambda path, **arguments: fake)
    return fake


def generated(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(generate, ["--model", "m", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def test_one_prompt_prints_its_completion_alone(model: FakeModel) -> None:
    result = generated("abc", "--max-tokens", "5")
    assert result.stdout == "abcab\n"
    note, figures = result.stderr.rstrip("\n").split("\n")
    assert note == "note: a notice"
    assert figures.startswith("3 prompt tokens (0 cached), 5 generated; first token ")
    assert figures.endswith("; model fake (float32, none, 1 thread)")


def test_defaults_then_the_model_then_the_flags(model: FakeModel) -> None:
    model.sampling_defaults = {"temperature": 0.5, "top_k": 7}
    generated("abc", "--top-k", "3", "--stop", "b")
    params = model.seen[-1].params
    assert (params.max_tokens, params.temperature, params.top_k, params.stop) == (128, 0.5, 3, ("b",))


def test_several_prompts_and_completions_are_told_apart(model: FakeModel, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("xy")
    result = generated("abc", "--prompt-file", str(file), "--prompt-file", "-", "--max-tokens", "2", stdin="z")
    assert result.stdout == "--- prompt 1\nab\n--- prompt 2\nxy\n--- prompt 3\nzz\n"
    result = generated("abc", "-n", "2", "--max-tokens", "1")
    assert result.stdout == "--- prompt 1, completion 1\na\n--- prompt 1, completion 2\na\n"


def test_json_is_the_same_bytes_for_the_same_input(model: FakeModel) -> None:
    arguments = ["abc", "--max-tokens", "4", "--stop", "c", "--json"]
    first = json.loads(generated(*arguments).stdout)
    assert first["prompts"] == [
        {
            "prompt": "abc",
            "prompt_tokens": 3,
            "cached_tokens": 0,
            "choices": [{"text": "ab", "token_ids": [97, 98, 99], "finish_reason": "stop", "stop_reason": "c"}],
        }
    ]
    assert (first["model"], first["system_fingerprint"]) == ("fake", "statemark-test")
    again = [generated(*arguments).stdout for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a PROMPT or a --prompt-file"),
        (["abc", "--temperature", "-1"], "temperature"),
        (["x" * 5000], "the prompt is too long: 5000 tokens"),
        (["abc", "--prompt-file", "no such file"], "no such file"),
    ],
)
def test_mistakes(model: FakeModel, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert run(["generate", "--model", "m", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: " in err
    assert message in err


def test_an_engine_error_is_an_error_of_the_command(model: FakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--model", "m", "!fail"]) == 1
    assert "error: the engine failed: a planted failure" in capsys.readouterr().err
    assert not model.requests


def chatted(*arguments: str, lines: list[str]) -> tuple[list[str], list[str]]:
    stdin = "".join(f"{line}\n" for line in lines)
    result = CliRunner().invoke(chat, ["--model", "m", *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stdout.splitlines(), result.stderr.splitlines()


def test_turns_build_on_each_other_and_say_what_they_reused(model: FakeModel) -> None:
    out, err = chatted("--max-tokens", "4", lines=["hi", "", "more"])
    assert out == ["u:hi", "u:hi"]
    first, second = (request.prompt_token_ids for request in model.seen)
    assert model.decode(first) == "u:hi\na:"
    assert model.decode(second) == "u:hi\na:u:hi\nu:more\na:"
    assert model.seen[1].turn_positions == (5, 12, 19)
    figures = [line for line in err if line.startswith("[")]
    assert figures[0].startswith("[0 of 7 prompt tokens cached; 4 written; first token ")
    assert figures[1].startswith("[7 of 21 prompt tokens cached; 4 written; first token ")


def test_commands_of_a_chat(model: FakeModel) -> None:
    lines = ["hi", "/reset", "yo", "/system be good", "so", "/reset", "on", "/system", "no", "/what", "/quit", "never"]
    _, err = chatted("--max-tokens", "1", "--system", "sys", lines=lines)
    assert [model.decode(r.prompt_token_ids) for r in model.seen] == [
        "s:sys\nu:hi\na:",
        "s:sys\nu:yo\na:",
        "s:be good\nu:so\na:",
        "s:be good\nu:on\na:",
        "u:no\na:",
    ]
    assert any("/system TEXT" in line for line in err)


def test_a_turn_that_can_not_be_served_leaves_no_trace(model: FakeModel) -> None:
    _, err = chatted("--max-tokens", "1", lines=["x" * 5000, "hi"])
    assert model.decode(model.seen[0].prompt_token_ids) == "u:hi\na:"
    assert any(line.startswith("error: the prompt is too long") for line in err)


def test_an_interrupt_stops_the_answer_and_keeps_the_conversation(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = model.step

    def interrupted() -> object:
        if len(model.seen) == 1 and len(model.written["turn-1", 0]) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(model, "step", interrupted)
    out, _ = chatted("--max-tokens", "4", lines=["hi", "on"])
    assert out == ["u:h [stopped]", "u:hi"]
    assert model.aborted == ["turn-1"]
    assert model.decode(model.seen[1].prompt_token_ids) == "u:hi\na:u:h\nu:on\na:"


def test_an_interrupt_of_generate_is_code_130(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "step", interrupted)
    assert run(["generate", "--model", "m", "abc"]) == 130
    assert model.aborted == ["prompt-1"]


def test_chat_without_a_model_or_document_has_something_to_ask_about() -> None:
    asked = "Where is the golden desk?\nAnd the red lamp?\n"
    result = CliRunner().invoke(chat, [], input=asked, catch_exceptions=False)
    assert result.stdout.splitlines() == ["The golden desk is on shelf 36.", "The red lamp is on shelf 67."]
    assert "looks facts up" in result.stderr
    assert "- golden desk 36\n[0 of" in result.stderr  # what it thought
    assert "think>" not in result.output
    asked = CliRunner().invoke(chat, ["--system", "no facts"], input="hi\n", catch_exceptions=False)
    assert "looks facts up" not in asked.stderr
