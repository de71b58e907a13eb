"""The positions at which messages end, for templates with awkward habits, and what finding them costs."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statemark.engine import turns as turns_module
from statemark.engine.chat import ChatPrompt, ChatTemplate
from statemark.engine.turns import HEADER, TurnFinder, token_turns
from statemark.errors import InvalidRequestError
from tests.engine.chat_templates import ALTERNATING, CHATML, COLLECTED, FOOTER, PLAIN, REASONING
from tests.engine.chats import ENCODE, msg, pieces, prompt
from tests.engine.tiny_tokenizers import byte_fallback, byte_level, with_spans

PROPERTY = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])

# --- where messages end -----------------------------------------------------------------------------------------

S, U, A = "<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"
E = "<|im_end|>\n"
TALK = [msg("system", "sys"), msg("user", "one"), msg("assistant", "two"), msg("user", "three")]


def test_every_message_and_the_header() -> None:
    assert pieces(prompt(CHATML, TALK)) == [f"{S}sys{E}", f"{U}one{E}", f"{A}two{E}", f"{U}three{E}", A]


def test_without_a_header_the_end_is_no_position() -> None:
    made = prompt(CHATML, TALK, add_generation_prompt=False)
    assert pieces(made) == [f"{S}sys{E}", f"{U}one{E}", f"{A}two{E}", f"{U}three{E}"]


@pytest.mark.parametrize("source", [FOOTER, COLLECTED, PLAIN])
def test_footers_buffers_and_plain_text(source) -> None:
    parts = pieces(prompt(source, TALK))
    assert [part.split("\n")[1].removesuffix("<|im_end|>") for part in parts[-4:-1]] == ["one", "two", "three"]
    assert parts[-1] in (A, "### assistant:\n")


def test_alternating_roles_and_a_system_message_that_is_refused_alone() -> None:
    parts = pieces(prompt(ALTERNATING, TALK))
    assert parts == [
        "<|im_start|>[INST] <<SYS>>sys",
        "<</SYS>>one [/INST]",
        " two <|im_end|>",
        "<|im_start|>[INST] three [/INST]",
    ]


def test_tools_end_where_the_first_message_begins() -> None:
    parts = pieces(prompt(REASONING, [msg("user", "one")], tools=[{"name": "f"}]))
    assert parts == [f'{S}# Tools\n{{"name": "f"}}{E}', f"{U}one{E}", A]


def test_a_system_message_that_is_refused_alone() -> None:
    assert pieces(prompt(REASONING, TALK[:2])) == [f"{S}sys{E}", f"{U}one{E}", A]


def test_dropped_reasoning_hides_no_user_message() -> None:
    messages = [
        msg("user", "one"),
        msg("assistant", "call", reasoning_content="hm"),
        msg("tool", "r1"),
        msg("tool", "r2"),
        msg("assistant", "two", reasoning_content="ah"),
        msg("user", "three"),
    ]
    assert pieces(prompt(REASONING, messages)) == [
        f"{U}one{E}",
        f"{A}call{E}",
        "<|im_start|>user\n<result>\nr1\n</result>",
        f"\n<result>\nr2\n</result>{E}",
        f"{A}two{E}",
        f"{U}three{E}",
        A,
    ]


def test_think_tags_in_the_newest_answer_only() -> None:
    made = prompt(REASONING, TALK, template_kwargs={"enable_thinking": False})
    parts = pieces(made)
    assert parts == [f"{S}sys{E}", f"{U}one{E}", f"{A}two{E}", f"{U}three{E}", f"{A}<think>\n\n</think>\n\n"]


def reused(earlier: ChatPrompt, later: ChatPrompt) -> int:
    """Tokens of `later` that marks at the earlier prompt's turn positions save."""
    return max((p for p in earlier.turn_positions if earlier.token_ids[:p] == later.token_ids[:p]), default=0)


def test_case_t1_empty_think_tags_in_the_newest_turn() -> None:
    """The loss is the answer and the header, whatever the header had."""
    history = [msg("system", "s" * 50), msg("user", "one " * 50)]
    for turn in range(3):
        first = prompt(REASONING, history, template_kwargs={"enable_thinking": False})
        history += [msg("assistant", "two"), msg("user", f"three {turn}")]
        second = prompt(REASONING, history, template_kwargs={"enable_thinking": False})
        header = byte_level().encode(f"{A}<think>\n\n</think>\n\n", add_special_tokens=False)
        assert reused(first, second) == len(first.token_ids) - len(header)


def test_case_t2_reasoning_dropped_at_the_next_user_message() -> None:
    """All up to the end of the earlier user message stays: what follows it is another text."""
    start = [msg("system", "sys"), msg("user", "question")]
    loop = [
        *start,
        msg("assistant", "call", reasoning_content="long thoughts " * 20),
        msg("tool", "result " * 20),
    ]
    first, inside = prompt(REASONING, start), prompt(REASONING, loop)
    later = prompt(REASONING, [*loop, msg("assistant", "done"), msg("user", "next")])
    kept = len(byte_level().encode(f"{S}sys{E}{U}question{E}", add_special_tokens=False))
    assert reused(first, inside) == reused(inside, later) == reused(first, later) == kept


def test_case_l11_the_state_before_the_header_serves_the_next_turn() -> None:
    first = prompt(CHATML, TALK)
    second = prompt(CHATML, [*TALK, msg("assistant", "four"), msg("user", "five")])
    assert reused(first, second) == len(first.token_ids) - len(byte_level().encode(A, add_special_tokens=False))


words = st.text(alphabet="ab <>\n#é中", max_size=8)
turns = st.lists(
    st.tuples(words, st.lists(st.tuples(words, words, words), max_size=2), words, words, st.booleans()),
    min_size=1,
    max_size=4,
)


def conversation(turns, system: str | None, last: str) -> list[dict]:
    messages = [] if system is None else [msg("system", system)]
    for question, calls, thought, answer, _ in turns:
        messages.append(msg("user", question))
        for reasoning, call, result in calls:
            messages += [msg("assistant", call, reasoning_content=reasoning), msg("tool", result)]
        messages.append(msg("assistant", answer, reasoning_content=thought))
    return [*messages, msg("user", last)]


@PROPERTY
@given(turns, st.none() | words, words, st.sampled_from([CHATML, REASONING]), st.booleans())
@example([("", [], "", "", True)], None, "", REASONING, True)
def test_user_messages_and_header_always_come_out(turns, system, last, source, header) -> None:
    messages = conversation(turns, system, last)
    made = prompt(source, messages, add_generation_prompt=header)
    edges = {0, *made.turn_positions, len(made.token_ids)}
    # From the end backwards, the text of each user message must lie between two positions.
    for k, message in enumerate(messages):
        if message["role"] == "user":
            before = byte_level().encode(made.text[: text_start(made.text, messages, k)], add_special_tokens=False)
            assert len(before) in edges
            assert made.token_ids[: len(before)] == before
    if header:
        assert len(made.token_ids) - len(byte_level().encode(A, add_special_tokens=False)) in edges


def text_start(text: str, messages: list[dict], k: int) -> int:
    """Where the user message k starts, counted by what only user messages have: a header that no result follows."""
    starts = [found.start() for found in re.finditer(re.escape("<|im_start|>user\n") + r"(?!<result>\n)", text)]
    return starts[sum(message["role"] == "user" for message in messages[:k])]


@PROPERTY
@given(turns, st.none() | words, words, st.sampled_from([CHATML, REASONING, FOOTER, PLAIN, COLLECTED]))
def test_positions_are_token_counts_of_text_prefixes(turns, system, last, source) -> None:
    made = prompt(source, conversation(turns, system, last))
    assert list(made.turn_positions) == sorted(set(made.turn_positions))
    length = 0
    for part in pieces(made)[:-1]:
        length += len(part)
        if source is not PLAIN:  # there, what follows a line break decides how it is cut
            ids = byte_level().encode(made.text[:length], add_special_tokens=False)
            assert made.token_ids[: len(ids)] == ids


def test_other_tokenizers() -> None:
    made = ChatTemplate(CHATML).prompt(with_spans(byte_fallback()), TALK)
    assert made.token_ids == byte_fallback().encode(made.text, add_special_tokens=False)
    for position in made.turn_positions:
        assert byte_fallback().token(made.token_ids[position]) == "<|im_start|>"
    assert len(made.turn_positions) == 4


# --- whose text is where --------------------------------------------------------------------------------------


def test_roles_of_the_pieces() -> None:
    made = prompt(REASONING, [msg("user", "one"), msg("assistant", "two"), msg("user", "three")], tools=[{"name": "f"}])
    assert made.turn_roles == ("preamble", "user", "assistant", "user", HEADER)
    assert prompt(CHATML, TALK).turn_roles == ("system", "user", "assistant", "user", HEADER)
    assert prompt(CHATML, TALK, add_generation_prompt=False).turn_roles == ("system", "user", "assistant", "user")


def test_a_piece_whose_messages_could_not_be_told_apart_has_all_their_roles() -> None:
    messages = [msg("system", ""), *TALK[1:]]
    assert prompt(ALTERNATING, messages).turn_roles == ("system or user", "assistant", "user")
    assert prompt(ALTERNATING, TALK).turn_roles == ("system", "user", "assistant", "user"), "its content shows its end"


@PROPERTY
@given(turns, st.none() | words, words, st.sampled_from([CHATML, REASONING, FOOTER, PLAIN, COLLECTED, ALTERNATING]))
def test_every_piece_has_roles_in_the_order_of_the_messages(turns, system, last, source) -> None:
    messages = conversation(turns, system, last)
    if source is ALTERNATING:
        messages = [m for m in messages if m["role"] != "tool" and (m["content"] or m["role"] != "assistant")]
        messages = [m for i, m in enumerate(messages) if not i or messages[i - 1]["role"] != m["role"]]
    made = prompt(source, messages)
    assert len(made.turn_roles) == len(made.turn_positions) + 1
    order = ["preamble", *(m["role"] for m in messages), HEADER]
    for roles in made.turn_roles:
        for role in roles.split(" or "):
            order = order[order.index(role) :]


def test_who_shares_no_cache_gains_nothing_from_what_is_remembered() -> None:
    """Else the time that a prompt takes to render would tell that somebody else sent the same conversation."""
    template = ChatTemplate(CHATML)

    def renderings(salt: str | None) -> int:
        count, original = 0, template._template.render

        def render(*args, **kwargs):
            nonlocal count
            count += 1
            return original(*args, **kwargs)

        template._template.render = render
        template.prompt(ENCODE, TALK, cache_salt=salt)
        del template._template.render
        return count

    alone = renderings("alice")
    assert renderings("alice") < alone
    assert renderings("bob") == alone
    assert renderings(None) == 1, "a count of tokens has no use for where messages end"
    assert renderings("") == alone, "and leaves nothing for those who name no salt"


# --- the search itself ------------------------------------------------------------------------------------------


def test_a_template_that_refuses_everything_but_the_whole_has_no_positions() -> None:
    def render(messages: list[dict]) -> str:
        raise InvalidRequestError("no")

    assert TurnFinder().begins(render, TALK, "whatever") == {}


def test_long_conversations_cost_a_bounded_number_of_renderings() -> None:
    messages = [msg("system", "s")]
    for i in range(300):
        messages += [msg("user" if i % 3 == 0 else "tool", f"q{i}"), msg("assistant", f"a{i}")]
    calls = 0

    def render(part: list[dict]) -> str:
        nonlocal calls
        calls += 1
        return "".join(f"<{m['role']}>{m['content']}" for m in part)

    full = render(messages) + "<assistant>"
    calls = 0
    offsets = TurnFinder().begins(render, messages, full)
    assert calls <= 2 * turns_module.MAX_BOUNDARIES + 3
    assert {len("<system>s"), len(full) - len("<assistant>")} <= set(offsets)
    newest = [len(render(messages[:k])) for k in range(len(messages) - 16, len(messages))]
    users = [len(render(messages[:k])) for k, m in enumerate(messages) if m["role"] == "user"]
    assert set(newest) | set(users[-15:]) <= set(offsets)


@pytest.mark.parametrize("source", [CHATML, REASONING, FOOTER])
def test_the_next_turn_costs_few_renderings_and_finds_the_same(source, monkeypatch) -> None:
    template = ChatTemplate(source)
    history = [msg("system", "s"), msg("user", "first")]
    renderings = 0
    original = ChatTemplate._renderer

    def counting(self, tools, kwargs):
        render = original(self, tools, kwargs)

        def count(messages, header):
            nonlocal renderings
            renderings += 1
            return render(messages, header)

        return count

    for turn in range(30):
        monkeypatch.setattr(ChatTemplate, "_renderer", counting)
        renderings = 0
        made = template.prompt(ENCODE, history)
        assert renderings <= 24
        monkeypatch.setattr(ChatTemplate, "_renderer", original)
        fresh = ChatTemplate(source).prompt(ENCODE, history)
        assert made.token_ids == fresh.token_ids
        assert set(fresh.turn_positions) <= set(made.turn_positions)
        history.append(msg("assistant", f"call {turn}", reasoning_content="hm" if turn % 2 else ""))
        history.append(msg("user" if turn % 4 == 3 else "tool", f"text {turn}"))


def test_what_is_remembered_depends_on_tools_and_options() -> None:
    template = ChatTemplate(REASONING)
    for options in ({}, {"tools": [{"name": "f"}]}, {"tools": [{"name": "g" * 30}]}):
        made = template.prompt(ENCODE, TALK, **options)
        assert made == prompt(REASONING, TALK, **options)


def test_an_edited_history_is_searched_anew() -> None:
    template = ChatTemplate(CHATML)
    template.prompt(ENCODE, TALK)
    edited = [TALK[0], msg("user", "quite another question"), *TALK[2:]]
    assert template.prompt(ENCODE, edited) == prompt(CHATML, edited)


def test_remembered_prompts_have_a_limit() -> None:
    finder = TurnFinder(remembered_prompts=3)
    for i in range(10):
        finder.begins(lambda part: "".join(m["content"] for m in part), [msg("user", str(i))], f"{i}:")
    assert len(finder._known) == 3


@pytest.mark.parametrize(
    ("offset", "count"), [(0, None), (2, None), (3, 1), (4, 1), (5, 2), (6, 4), (7, 5), (8, 5), (9, None), (99, None)]
)
def test_an_offset_inside_a_token_counts_the_tokens_before_it(offset, count) -> None:
    # The third and fourth token are bytes of one character, as byte-level tokenizers report it.
    spans = [(0, 3), (3, 5), (5, 6), (5, 6), (6, 7), (7, 9)]
    assert token_turns(spans, {offset: 1}, ["user"]).positions == (() if count is None else (count,))


@given(st.text(alphabet="ab"), st.text(alphabet="ab"), st.text(alphabet="ab"))
def test_common_beginnings(same, a, b) -> None:
    x, y = same + a, same + b
    count = turns_module._common(x, y)
    assert x[:count] == y[:count]
    assert count == min(len(x), len(y)) or x[count] != y[count]
