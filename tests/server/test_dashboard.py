"""The page at / and its numbers, without a browser: what is served, to whom, and that it holds nothing foreign."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from typing import Any

import httpx

from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, running


def test_the_page_is_one_file_and_its_policy_allows_nothing_else(served: Running) -> None:
    answer = httpx.get(f"{served.url}/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.text
    # The one address in it is a name space, which nobody fetches.
    assert re.findall(r"https?://[^\"' ]*", text) == ["http://www.w3.org/2000/svg"]
    assert re.findall(r"<(?:link|img|iframe|object|embed|base)\b|@import|url\((?!#)|\b(?:src|href)=", text) == []
    assert re.findall(r"\sstyle=|\son\w+=|javascript:|innerHTML|eval\(", text) == []
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    for kind in ("script", "style"):
        (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"


def test_the_numbers(served: Running) -> None:
    body = {"prompt": "the page's own prompt", "max_tokens": 5}
    before = httpx.get(f"{served.url}/statemark/state").json()["totals"]
    for _ in range(2):
        assert httpx.post(f"{served.url}/v1/completions", json=body).status_code == 200
    found = httpx.get(f"{served.url}/statemark/state").json()
    assert (found["status"], found["model"]["name"]) == ("ready", "fake")
    grown = {name: found["totals"][name] - before[name] for name in before}
    assert (grown["generated_tokens"], grown["prompt_tokens"], grown["first_tokens"]) == (10, 42, 2)
    assert grown["gaps"] == 8
    assert min(grown.values()) >= 0
    for name, count in (("first_token", found["totals"]["first_tokens"]), ("gap", found["totals"]["gaps"])):
        limits, counts = zip(*found["buckets"][name], strict=True)
        assert list(limits[:-1]) == sorted(limits[:-1])
        assert (limits[-1], counts[-1]) == (None, count)
        assert list(counts) == sorted(counts)
    assert found["engine"]["cache_bytes"] == 1000
    assert found["engine"]["tokens_lost"] == {"unmarked": 6}
    assert [mark["parent"] for mark in found["marks"]] == [-1, 0, 1, 0]


def test_the_numbers_hold_no_text_and_few_marks(served: Running, fake: FakeModel, monkeypatch: Any) -> None:
    httpx.post(f"{served.url}/v1/completions", json={"prompt": "a secret of another tenant", "max_tokens": 2})
    asked: list[int] = []
    monkeypatch.setattr(fake, "marks", lambda limit: asked.append(limit) or [])
    text = httpx.get(f"{served.url}/statemark/state").text
    assert "secret" not in text
    assert asked == [300]


def test_a_busy_engine_keeps_nobody_waiting(served: Running, fake: FakeModel, monkeypatch: Any) -> None:
    monkeypatch.setattr("statemark.server.dashboard._PATIENCE", 0.0)
    found = httpx.get(f"{served.url}/statemark/state").json()
    assert (found["status"], found["engine"], found["marks"]) == ("ready", None, [])


def test_the_key_guards_the_numbers_and_not_the_page(fake: FakeModel) -> None:
    with running(lambda: fake, settings=Settings(port=0, api_key="s3cret")) as locked:
        assert httpx.get(f"{locked.url}/").status_code == 200
        assert httpx.get(f"{locked.url}/statemark/state").status_code == 401
        with_key = httpx.get(f"{locked.url}/statemark/state", headers={"authorization": "Bearer s3cret"})
        assert with_key.status_code == 200
        assert "s3cret" not in json.dumps(with_key.json())


def test_while_the_model_loads_there_is_a_status(fake: FakeModel) -> None:
    gate = threading.Event()

    def load() -> FakeModel:
        gate.wait()
        return fake

    with running(load, wait=False) as loading:
        found = httpx.get(f"{loading.url}/statemark/state").json()
        gate.set()
        assert (found["status"], found["model"], found["engine"]) == ("loading", None, None)
