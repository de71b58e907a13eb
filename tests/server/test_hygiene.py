"""Values that are new each time are taken out of system prompts where that is asked for, and it is counted."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statemark.server.hygiene import normalized
from statemark.server.state import Settings
from tests.server.fake_model import FakeModel
from tests.server.live_server import Running, running
from tests.server.test_metrics import scrape

HEAD = "x-anthropic-billing-header: "
LINE = HEAD + "cc_version=2.1.63.{}; cc_entrypoint=cli; cch={};"
REST = "\nYou are an agent.\n" + "Be careful with files. " * 20


def system(nonce: str, first: str = "a43") -> str:
    return LINE.format(first, nonce) + REST


def test_the_values_become_zeros_and_the_rest_stays() -> None:
    before = [{"role": "system", "content": system("0a1b2")}, {"role": "user", "content": system("0a1b2")}]
    after, changed = normalized(before)
    assert changed
    assert after == [{"role": "system", "content": system("00000", "000")}, before[1]]
    assert before[0]["content"] == system("0a1b2")


def test_the_line_that_was_seen_where_the_agent_speaks_to_another_address() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.197.58e; cc_entrypoint=sdk-cli;"
    after, changed = normalized([{"role": "system", "content": line}])
    assert (after[0]["content"], changed) == (line.replace("58e", "000"), True)


def test_parts_are_looked_into() -> None:
    parts = [{"type": "text", "text": system("fffff")}, {"type": "text", "text": "more"}, {"type": "other"}]
    after, changed = normalized([{"role": "system", "content": parts}])
    assert changed
    assert after[0]["content"] == [{"type": "text", "text": system("00000", "000")}, *parts[1:]]


@pytest.mark.parametrize(
    "text",
    [
        "cc_version=2.1.63.a43; cc_entrypoint=cli; cch=0a1b2;",
        f"{HEAD}cc_version=2.1.630; cc_entrypoint=cli; cch=0a1b;",
        f"{HEAD}cc_version=2.1.63.a43b; cc_entrypoint=cli; cch=0a1b2c;",
        f"{HEAD}cc_version=2.1.63.zzz; cc_entrypoint=cli;\ncch=0a1b2;",
        f"{HEAD}cc_version=2.1.63; cc_entrypoint=cli; cch=zzzzz; scch=0a1b2;",
        f"more {HEAD}cc_version=2.1.63.a43; cc_entrypoint=cli; cch=0a1b2;",
    ],
)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert normalized([{"role": "system", "content": text}]) == ([{"role": "system", "content": text}], False)


@given(st.text(), *[st.text("0123456789abcdef", min_size=size, max_size=size) for size in (5, 3)])
def test_two_requests_become_equal_and_a_second_pass_changes_nothing(rest: str, nonce: str, first: str) -> None:
    once, _ = normalized([{"role": "system", "content": LINE.format(first, nonce) + "\n" + rest}])
    assert once == normalized([{"role": "system", "content": LINE.format("abc", "12345") + "\n" + rest}])[0]
    assert normalized(once) == (once, False)


def ask(served: Running, nonce: str) -> int:
    """Cached tokens of a request of the agent."""
    body: dict[str, Any] = {
        "model": "fake",
        "max_tokens": 1,
        "system": [{"type": "text", "text": system(nonce)}],
        "messages": [{"role": "user", "content": "hi"}],
    }
    response = httpx.post(f"{served.url}/v1/messages", json=body)
    assert response.status_code == 200, response.text
    return int(response.json()["usage"]["cache_read_input_tokens"])


def test_it_is_off_unless_asked_for_and_reported_when_it_acts() -> None:
    head = len("s:" + LINE.format("a43", "")) - 1
    with running(FakeModel) as plain:
        assert [ask(plain, nonce) for nonce in ("0a1b2", "ffff0")] == [0, head]
        assert "statemark:system_prompts_normalized_total" not in scrape(plain)
    with running(FakeModel, settings=Settings(port=0, normalize_system=True)) as helped:
        first, second = ask(helped, "0a1b2"), ask(helped, "ffff0")
        assert first == 0
        assert second > len(system("")) + 5
        assert scrape(helped)["statemark:system_prompts_normalized_total"] == 2


def test_where_prompts_part_is_counted_by_role(real: Running) -> None:
    def count(role: str) -> float:
        return scrape(real).get(f"statemark:prompts_parted_total{{{role}}}", 0)

    def chat(*contents: str) -> None:
        roles = ("system", "user")
        messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        body = {"messages": messages, "max_tokens": 1}
        assert httpx.post(f"{real.url}/v1/chat/completions", json=body, timeout=60).status_code == 200

    chat("you are somebody and everybody knows", "a first question of some length")
    before = {role: count(role) for role in ("system", "user")}
    chat("you are somebody and everybody knows", "quite another thing")
    assert (count("user"), count("system")) == (before["user"] + 1, before["system"])
    chat("you are somebody and nobody knows", "quite another thing")
    assert (count("user"), count("system")) == (before["user"] + 1, before["system"] + 1)
