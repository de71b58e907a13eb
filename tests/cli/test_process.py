"""The command as a process of its own, with a real model: exit codes, pipes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from statemark.models.make_model import make_model
from tests.cache.disk.forging import load
from tests.server.live_server import eventually

COMMAND = [sys.executable, "-c", "import sys; from statemark.cli import main; sys.exit(main())"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("STATEMARK_")}
SMALL = ["--threads", "1", "--cache-memory", "64MiB"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_model(folder, like="qwen3.5-0.8b", scale="tiny")
    return str(folder)


def ran(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, check=False, env=ENVIRONMENT | (env or {})
    )


def test_generate_prints_data_on_stdout_and_talk_on_stderr(tiny: str) -> None:
    asked = ["generate", "-m", tiny, *SMALL, "Once upon a time", "-t", "0", "--max-tokens", "8"]
    done = ran(*asked)
    assert done.returncode == 0, done.stderr
    assert "prompt tokens (0 cached), 8 generated; first token" in done.stderr
    assert "model tiny (bfloat16, " in done.stderr
    assert "\033" not in done.stdout + done.stderr
    whole = json.loads(ran(*asked, "--json").stdout)
    assert done.stdout == whole["prompts"][0]["choices"][0]["text"] + "\n"
    assert ran(*asked, "--json").stdout == ran(*asked, "--json", env={"STATEMARK_MODEL": "elsewhere"}).stdout


def test_a_piped_chat(tiny: str) -> None:
    done = ran(
        "chat", "-m", tiny, *SMALL, "-t", "0", "--max-tokens", "6", "--ignore-eos", stdin="hello\nand\n/quit\nno\n"
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"\[(\d+) of (\d+) prompt tokens cached; 6 written; first token", done.stderr)
    assert len(found) == 2
    (none, first), (reused, second) = ((int(a), int(b)) for a, b in found)
    assert none == 0
    assert first - 8 <= reused < second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "-m", "no/such/folder", "x"], "no/such/folder"),
        (["generate", "-m", "TINY", "x", "--max-model-len", "100000"], "100000"),
        (["generate", "-m", "TINY", "x", "--cache-memory", "1K"], "1,024 bytes is too small"),
        (["generate", "-m", "TINY", "x", "--max-num-batched-tokens", "1"], "max_num_batched_tokens 1"),
        (["generate", "-m", "TINY", ""], "the prompt is empty"),
        (["generate", "-m", "TINY", "x", "--top-p", "2"], "top_p"),
        (["serve", "-m", "no/such/folder", "--port", "0"], "no/such/folder"),
        (["serve", "-m", "TINY", "--port", "0", "--api-key", ""], "the API key is empty"),
        (["generate", "-m", "TINY", "x", "--cache-disk", "1G"], "cache_disk is given without cache_dir"),
        (["generate", "-m", "TINY", "x", "--cache-dir", "/dev/null"], "the cache directory '/dev/null' can't be made"),
        (["generate", "-m", "TINY", "x", "--cache-dir", "d", "--no-prefix-caching"], "prefix caching is off"),
        (["serve", "-m", "TINY", "--port", "0", "--host", "host.invalid"], "can't listen on host.invalid:0"),
    ],
)
def test_user_errors_are_code_2_without_a_traceback(tiny: str, arguments: list[str], message: str) -> None:
    done = ran(*[tiny if a == "TINY" else a for a in arguments])
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert f"error: {message}" in done.stderr or re.search(rf"^error: .*{re.escape(message)}", done.stderr, re.M)
    assert "Traceback" not in done.stderr


def test_a_closed_pipe_is_no_traceback(tiny: str) -> None:
    with subprocess.Popen(
        [*COMMAND, "generate", "-m", tiny, *SMALL, "a", "--max-tokens", "2000", "--ignore-eos"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode != 0


@contextmanager
def serving(tiny: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A `statemark serve` process, its URL, and the lines that it said before it was ready."""
    process = subprocess.Popen(
        [*COMMAND, "serve", "-m", tiny, *SMALL, "--port", "0", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            found = re.match(r"serving at (http://127\.0\.0\.1:\d+)/v1", line)
            if found:
                break
        else:
            pytest.fail("\n".join(lines))
        yield process, found[1], lines
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_serve_reports_answers_and_ends_on_a_signal(tiny: str, number: signal.Signals, code: int) -> None:
    with serving(tiny, "--served-model-name", "mine", "--api-key", "k") as (process, url, lines):
        assert lines[0].startswith("loading ")
        report = "\n".join(lines[1:])
        for part in (
            "model    mine",
            "bfloat16",
            "1 thread",
            "64 MiB",
            "tokens of pages",
            "marks",
            "smallest reusable prefix 1 token",
        ):
            assert part in report
        assert httpx.get(f"{url}/health").status_code == 200
        with openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
            answer = client.chat.completions.create(
                model="mine", messages=[{"role": "user", "content": "hi"}], max_tokens=3
            )
        assert answer.usage is not None
        assert answer.usage.completion_tokens >= 1
        process.send_signal(number)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in rest


LONG = "a document that many questions are about, long enough to be worth a file " * 60


def cached_of(url: str, **fields: object) -> tuple[int, int, str]:
    body = {"model": "tiny", "prompt": LONG, "max_tokens": 4, "temperature": 0, **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()
    usage = answer["usage"]
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    return reused, usage["prompt_tokens"], answer["choices"][0]["text"]


def test_a_killed_server_loses_nothing_but_what_was_in_flight(tiny: str, tmp_path: Path) -> None:
    asked = ("--cache-dir", str(tmp_path / "kept"), "--cache-disk", "200MiB")
    with serving(tiny, *asked) as (process, url, lines):
        assert any(re.match(r"disk +.*kept: 0 marks of this model, 0 of 200 MiB", line) for line in lines), lines
        none, size, text = cached_of(url)
        assert none == 0
        kept = tmp_path / "kept"
        eventually(lambda: any(load(path)[0].description.position == size - 1 for path in kept.glob("*.mark")))
        process.kill()
        process.wait()
        killed = process.pid
    with serving(tiny, *asked) as (process, url, lines):
        assert any(re.match(r"disk +.*kept: [1-9]\d* marks of this model", line) for line in lines), lines
        reused, _, again = cached_of(url)
        assert reused >= size - 1
        assert again == text
        assert cached_of(url, cache_salt="other") == (0, size, text)
        assert not list(kept.glob(f".*.{killed}.*"))


def test_generate_keeps_prefixes_for_the_next_run(tiny: str, tmp_path: Path) -> None:
    asked = [
        "generate",
        "-m",
        tiny,
        *SMALL,
        "--cache-dir",
        str(tmp_path),
        LONG,
        "-t",
        "0",
        "--max-tokens",
        "4",
        "--json",
    ]
    first, second = (json.loads(ran(*asked).stdout) for _ in range(2))
    texts = [found["prompts"][0]["choices"][0]["text"] for found in (first, second)]
    assert texts[0] == texts[1]
    counts = [found["prompts"][0]["cached_tokens"] for found in (first, second)]
    assert counts[0] == 0
    assert counts[1] > 500


def test_a_second_interrupt_hurries_and_is_no_traceback(tiny: str) -> None:
    with serving(tiny, "--shutdown-grace", "100", "--access-log", "-") as (process, url, _):
        body = {"prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            while httpx.get(f"{url}/health").json()["status"] != "draining":
                pass
            process.send_signal(signal.SIGINT)
            frames = [line for line in lines if line]
        assert "shutting_down" in frames[-2]
        assert frames[-1] == "data: [DONE]"
        _, rest = process.communicate(timeout=60)
        assert process.returncode in (130, -signal.SIGINT)
        assert "Traceback" not in rest


def test_serve_on_a_taken_port(tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = ran("serve", "-m", tiny, "--port", port)
    assert done.returncode == 2
    assert f"error: can't listen on 127.0.0.1:{port}" in done.stderr
    assert "hint: " in done.stderr


def test_without_a_name_the_bundled_model_and_it_says_so() -> None:
    done = ran("generate", "x", "--max-tokens", "1", *SMALL)
    if done.returncode == 0:
        assert "no model is named: this is the small one that comes with statemark" in done.stderr
    else:  # an installation without it
        assert done.returncode == 2
        assert "hint: " in done.stderr
        assert "Traceback" not in done.stderr


def test_serving_other_machines_without_a_key_is_said(tiny: str) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", "-m", tiny, *SMALL, "--port", "0", "--host", "0.0.0.0"],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.kill()
    assert first.startswith("note: 0.0.0.0 can be reached from other machines")
