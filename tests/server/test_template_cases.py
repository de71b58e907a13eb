"""The public reports of kind template mutation, and those of kind lookup that are about chats, over HTTP.

The real renderer, tokenizer, server and engine on a tiny random model, for templates of several habits. What the reuse
has to be is worked out from the rendered text alone: every message's content is in it once, so all messages that lie
wholly inside what two prompts share are known without asking how turns are found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from statemark.server.loaded import LoadedModel
from tests.engine.chat_templates import CHATML, REASONING
from tests.server.live_server import Running, running
from tests.server.mutating_templates import SPLITS_THINKING, SYSTEM_IN_USER, TOOLS_IN_FIRST_USER, TOOLS_MOVE

TEMPLATES = {
    "chatml": CHATML,
    "reasoning": REASONING,
    "splits thinking": SPLITS_THINKING,
    "tools in first user": TOOLS_IN_FIRST_USER,
    "tools move": TOOLS_MOVE,
    "system in user": SYSTEM_IN_USER,
}
Messages = list[dict[str, Any]]


def msg(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def words(name: str, count: int) -> str:
    """Text that no other name gives."""
    return " ".join(f"{name}{i}" for i in range(count))


@dataclass(frozen=True)
class Asked:
    messages: Messages
    ids: list[int]
    cached: int
    said: dict[str, Any]


class Client:
    """Conversations with one server, each client with a salt of its own."""

    numbers = itertools.count()

    def __init__(self, server: Running) -> None:
        self.server = server
        self.salt = f"client-{next(self.numbers)}"
        self.asked: list[Asked] = []

    def ask(self, messages: Messages, **fields: Any) -> Asked:
        body = {
            "messages": messages, "max_tokens": 1, "temperature": 0, "return_token_ids": True, "explain_cache": True,
            "cache_salt": self.salt, **fields,
        }  # fmt: skip
        response = httpx.post(f"{self.server.url}/v1/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        answer = response.json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.asked.append(Asked(messages, answer["prompt_token_ids"], cached, answer["cache"]))
        got = self.asked[-1]
        assert got.cached == got.said["reused"] <= self.shared(got)
        return got

    def shared(self, asked: Asked) -> int:
        """Tokens that this prompt has in common with any before it."""
        before = self.asked[: self.asked.index(asked)]
        return max((common(asked.ids, other.ids) for other in before), default=0)

    def ends(self, asked: Asked) -> list[int]:
        """Tokens up to the end of each message's content that the template shows as it is, and all before it."""
        decode = self.server.state.model().decode
        found = []
        for message in asked.messages:
            content = message["content"].strip()
            low, high = 0, len(asked.ids)
            if content not in decode(asked.ids):
                continue
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if content in decode(asked.ids[:middle]) else (middle + 1, high)
            found.append(low)
        return found

    def whole(self, asked: Asked) -> int:
        """Tokens up to the end of the last message that lies wholly in what is shared."""
        shared = self.shared(asked)
        return max(itertools.takewhile(lambda end: end <= shared, self.ends(asked)), default=0)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.fixture(scope="module", params=list(TEMPLATES))
def server(request: pytest.FixtureRequest, tiny: Path) -> Iterator[Running]:
    source = TEMPLATES[request.param]
    with running(
        lambda: LoadedModel.load(tiny, chat_template=source, num_threads=1, cache_memory="96MiB", name=request.param)
    ) as found:
        yield found


@pytest.fixture
def client(server: Running) -> Client:
    return Client(server)


def name(client: Client) -> str:
    return client.server.state.model().name


SYSTEM = msg("system", words("sys", 40))
TOOLS = [{"type": "function", "function": {"name": f"tool{i}", "description": words(f"does{i}", 12)}} for i in range(4)]


def tool_loop(turn: int, calls: int) -> Messages:
    """An agent's turn: a question, calls with reasoning and their results."""
    messages = [msg("user", words(f"question{turn}x", 12))]
    for i in range(calls):
        thought = words(f"thought{turn}{i}x", 15)
        messages += [
            msg("assistant", words(f"call{turn}{i}x", 4), reasoning_content=thought),
            msg("tool", words(f"result{turn}{i}x", 15)),
        ]
    return messages


def test_every_message_that_two_prompts_share_whole_is_reused(client: Client) -> None:
    """L10, L11, L15, T2: an agent's loop grows, and a new user message ends it, whatever the template then drops."""
    history = [SYSTEM]
    for turn in range(3):
        loop = tool_loop(turn, 2)
        for k in range(1, len(loop) + 1, 2):  # each time an answer is asked for
            got = client.ask([*history, *loop[:k]], tools=TOOLS)
            assert got.cached >= client.whole(got)
            assert (got.cached > 0) == (len(client.asked) > 1)
        history += [*loop, msg("assistant", words(f"answer{turn}x", 8))]


def test_l12_asked_again_all_but_one_token_is_reused(client: Client) -> None:
    messages = [SYSTEM, msg("user", words("again", 20))]
    first, second = client.ask(messages, tools=TOOLS), client.ask(messages, tools=TOOLS)
    assert second.ids == first.ids
    assert second.cached == len(first.ids) - 1


def test_t1_thinking_off_loses_the_last_header_and_the_reply_only(client: Client) -> None:
    """Empty think tags only in the newest turn. The case's right: the header (less than 20 tokens) and the reply."""
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    history, before = [SYSTEM], None
    for turn in range(4):
        history = [*history, msg("user", words(f"ask{turn}x", 15))]
        got = client.ask(history, **off)
        if before is not None:
            assert got.cached >= client.ends(before)[-1], "all but the header"
        before = got
        history = [*history, msg("assistant", words(f"reply{turn}x", 6))]


def test_t1_thinking_that_clients_send_back_and_templates_cut(client: Client) -> None:
    history = [SYSTEM]
    for turn in range(3):
        history = [*history, msg("user", words(f"ask{turn}x", 15))]
        got = client.ask(history)
        assert got.cached >= client.whole(got)
        thought = f"<think>\n{words(f'hm{turn}x', 10)}\n</think>\n\n{words(f'reply{turn}x', 6)}"
        history = [*history, msg("assistant", thought)]


def test_t2_the_state_at_each_user_message_outlives_the_reasoning_behind_it(client: Client) -> None:
    """The case's right: the prompt parts at the first answer after the last user message, and all before is reused."""
    start = [SYSTEM, msg("user", words("question", 30))]
    client.ask(start)
    loop = [*start, *tool_loop(1, 3)[1:]]
    client.ask(loop)
    got = client.ask([*loop, msg("assistant", words("done", 5)), msg("user", words("next", 5))])
    assert got.cached >= client.whole(got) > 0
    question = next(a for a in client.asked if a.messages == start)
    assert got.cached >= client.ends(question)[-1], "the question and all before it"


@pytest.mark.parametrize("place", [0, 30])
def test_t3_t4_a_nonce_or_a_clock_in_the_system_line_costs_what_follows_it_and_no_more(
    client: Client, place: int
) -> None:
    """From the third request on all that stands before it is reused, to the token: the junction is marked."""
    text = words("sys", 60).split()
    for i in range(4):
        system = " ".join([*text[:place], f"cch={i * 7919 % 99991:05x}", *text[place:]])
        got = client.ask([msg("system", system), msg("user", words("question", 20))], tools=TOOLS)
        if i >= 2:
            shared = client.shared(got)
            assert got.cached == shared or shared - got.cached < 16
            assert place == 0 or got.cached > 30
            assert got.said["first_different"] == got.said["shared"] >= shared


def test_t5_blanked_tool_results_cut_at_the_first_of_them(client: Client) -> None:
    """The case's right: the state before the first pruned result is kept, and everything up to there reused."""
    history = [SYSTEM, msg("user", words("question", 10))]
    for i in range(5):
        history += [msg("assistant", words(f"call{i}x", 4)), msg("tool", words(f"result{i}x", 25))]
        client.ask(history)
    for pruned in (3, 1, 0):  # newest first, as the case recommends, then further back
        blanked = [
            {**m, "content": f"[cleared {i}]"} if m["role"] == "tool" and (i - 3) // 2 >= pruned and i < 11 else m
            for i, m in enumerate(history)
        ]
        got = client.ask(blanked)
        assert got.cached >= client.whole(got) > 0


def test_t6_reordered_tools_cut_inside_the_tool_block_and_both_orders_stay(client: Client) -> None:
    messages = [SYSTEM, msg("user", words("question", 10))]
    client.ask(messages, tools=TOOLS)
    flipped = [*TOOLS[:2], *reversed(TOOLS[2:])]
    got = client.ask(messages, tools=flipped)
    assert got.cached <= client.shared(got)
    for tools in (TOOLS, flipped):
        again = client.ask(messages, tools=tools)
        assert again.cached == len(again.ids) - 1
    third = client.ask(messages, tools=TOOLS[:2])
    assert third.cached <= client.shared(third)


def test_t8_side_requests_leave_the_main_conversation_alone(client: Client) -> None:
    history = [SYSTEM, msg("user", words("question", 60))]
    before = client.ask(history, tools=TOOLS)
    for turn in range(4):
        for side in range(3):
            client.ask([msg("user", words(f"title{turn}{side}x", 25))])
        history = [*history, msg("assistant", words(f"reply{turn}x", 5)), msg("user", words(f"more{turn}x", 10))]
        got = client.ask(history, tools=TOOLS)
        assert got.cached >= client.whole(got)
        if name(client) != "tools move":  # there, what precedes the last user message moves with it
            assert got.cached >= client.ends(before)[-1]
        before = got


def test_o3_a_reply_that_is_sent_back_whole_is_reused_with_its_prompt(client: Client) -> None:
    """As token ids, since a random model's text need not come back as the tokens that it was."""
    url = f"{client.server.url}/v1/completions"
    body: dict[str, Any] = {"max_tokens": 9, "temperature": 0, "return_token_ids": True, "cache_salt": client.salt}
    prompt = client.ask([SYSTEM, msg("user", words("question", 9))]).ids
    first = httpx.post(url, json={**body, "prompt": prompt, "ignore_eos": True}, timeout=60).json()
    reply = first["choices"][0]["token_ids"]
    second = httpx.post(url, json={**body, "prompt": [*prompt, *reply, 5, 6, 7]}, timeout=60).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) + len(reply) - 1


def test_the_role_in_which_a_prompt_parts_is_told(client: Client) -> None:
    a = [SYSTEM, msg("user", words("one", 10)), msg("assistant", words("two", 5)), msg("user", words("three", 5))]
    client.ask(a)
    for k, role in ((3, "user"), (1, "user"), (0, "system")):
        changed = [*a[:k], {**a[k], "content": words("zzz", 10)}, *a[k + 1 :]]
        got = client.ask(changed)
        assert role in got.said["role"].split(" or "), got.said
