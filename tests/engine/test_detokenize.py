"""Streaming text against decoding the whole, and stop strings against searching the whole."""

from __future__ import annotations

import functools

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from statemark.engine.detokenize import Detokenizer, StopMatcher, TextStream, TokenTexts
from tests.engine.tiny_tokenizers import TEXT, byte_fallback, byte_level

PROPERTY = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])


@functools.cache
def texts() -> TokenTexts:
    return TokenTexts(byte_level())


def bytes_as_tokens(data: bytes) -> list[int]:
    """One token a byte, whatever the merges would do."""
    return [byte_tokens()[byte] for byte in data]


@functools.cache
def byte_tokens() -> list[int]:
    tokenizer = byte_level()
    # The byte alphabet of GPT-2: printable bytes stand for themselves, the others for 256, 257, ...
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    ids = [tokenizer.id(chr(byte) if byte in printable else chr(next(others))) for byte in range(256)]
    assert None not in ids
    return [token for token in ids if token is not None]


def stream(ids: list[int], skip: bool = True, tokenizer=None) -> list[str]:
    detokenizer = Detokenizer(texts() if tokenizer is None else TokenTexts(tokenizer), skip_special_tokens=skip)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


# --- text -------------------------------------------------------------------------------------------------------

any_ids = st.lists(st.integers(0, byte_level().vocab_size + 3), max_size=120)
broken_bytes = st.lists(
    st.sampled_from(
        [b"\xe4\xb8\xad", b"\xe4", b"\xb8", b"\xf0\x9f", b"\x8e\x89", b"\xff", b"a", b" ", "\ufffd".encode()]
    ),
    max_size=60,
).map(lambda parts: bytes_as_tokens(b"".join(parts)))
specials = st.sampled_from([byte_level().id(name) or 0 for name in ("<|im_start|>", "<|im_end|>", "<think>")])


@PROPERTY
@given(any_ids | broken_bytes | st.lists(specials | st.sampled_from(bytes_as_tokens(b"\xe4\xb8\xada ")), max_size=200))
@example([])
def test_deltas_add_up_to_the_whole_text(ids) -> None:
    for skip in (True, False):
        assert "".join(stream(ids, skip)) == byte_level().decode(ids, skip_special_tokens=skip)


@PROPERTY
@given(st.text(max_size=60))
@example(TEXT * 3)
def test_texts_come_back_and_never_in_half_characters(text) -> None:
    ids = byte_level(0).encode(text, add_special_tokens=False)
    parts = stream(ids, tokenizer=byte_level(0))
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@PROPERTY
@given(st.text(alphabet="abc é中🎉\u0301", max_size=60))
def test_tokenizers_with_byte_fallback_and_joined_words(text) -> None:
    ids = byte_fallback().encode(text, add_special_tokens=False)
    parts = stream(ids, tokenizer=byte_fallback())
    assert "".join(parts) == byte_fallback().decode(ids)
    assert not any("\ufffd" in part for part in parts)


def test_characters_come_as_soon_as_they_are_complete() -> None:
    assert stream(bytes_as_tokens("a中b".encode())) == ["a", "", "", "中", "b", ""]


def test_an_incomplete_end_is_shown_at_the_end() -> None:
    assert stream(bytes_as_tokens(b"a\xe4\xb8")) == ["a", "", "", "\ufffd"]


def test_special_tokens_inside_a_character() -> None:
    first, second, third = bytes_as_tokens("中".encode())
    special = byte_level().id("<|im_end|>")
    assert special is not None
    assert stream([first, *[special] * 300, second, third])[-2:] == ["中", ""]


class Counting:
    """Counts tokens that are decoded, to see that the cost a token doesn't grow."""

    def __init__(self) -> None:
        self.inner = byte_level()
        self.tokens = 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.tokens += len(ids)
        return self.inner.decode(ids, skip_special_tokens)

    def token(self, token_id: int) -> str:
        return self.inner.token(token_id)


@pytest.mark.parametrize(
    "data",
    [b"abc ", b"\x80", b"\xf0\x9f", "\ufffd".encode(), "中".encode()],
    ids=["text", "junk", "half", "fffd", "cjk"],
)
def test_the_cost_of_a_token_is_bounded(data) -> None:
    counting = Counting()
    detokenizer = Detokenizer(TokenTexts(counting))
    ids = bytes_as_tokens(data * 2000)
    shown = "".join(detokenizer.push(token) for token in ids)
    assert counting.tokens < 100 * len(ids)
    assert shown + detokenizer.flush() == byte_level().decode(ids)


def test_planted_fault_a_window_cut_inside_a_character_would_be_seen(monkeypatch) -> None:
    def careless(self: Detokenizer) -> str:
        self._window = self._window[-1:]
        self._text = self._decode(self._window)
        self._shown = len(self._text.rstrip("\ufffd"))
        return ""

    ids = bytes_as_tokens("a中".encode() * 20)
    assert "".join(stream(ids)) == "a中" * 20
    monkeypatch.setattr(Detokenizer, "_move_window", careless)
    assert "".join(stream(ids)) != "a中" * 20


# --- stop strings -----------------------------------------------------------------------------------------------


def first_stop(text: str, stops: list[str]) -> tuple[int, str] | None:
    """(end of the match, stop string): the one that ends first, of those the longest."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    return (min(found)[0], min(found)[2]) if found else None


small = st.text(alphabet="ab", min_size=1, max_size=5)


@PROPERTY
@given(
    parts=st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    stops=st.lists(small, max_size=3),
    include=st.booleans(),
)
@example(parts=["aab"], stops=["aab", "ab", "b"], include=False)
def test_stops_are_found_whatever_the_parts(parts, stops, include) -> None:
    text = "".join(parts)
    matcher = StopMatcher(stops, include=include)
    shown, stop = "", None
    for part in parts:
        new, stop = matcher.push(part)
        shown += new
        if stop is not None:
            break
        # Nothing is held without need: what is held begins a stop string.
        held = text[len(shown) : len(shown) + len(matcher._held)]
        assert matcher._held == held
        assert held == "" or any(s.startswith(held) and s != held for s in stops)
    expected = first_stop(text, stops)
    if expected is None:
        assert stop is None
        assert shown + matcher.flush() == text
    else:
        end, name = expected
        assert stop == name
        assert shown == text[: end if include else end - len(name)]


def test_a_long_stop_string_costs_no_more_a_character() -> None:
    stop = "a" * 200_000 + "b"
    matcher = StopMatcher([stop])
    assert matcher.push("a" * 250_000) == ("a" * 50_000, None)
    assert matcher.push("b") == ("", stop)


def answer(text: str, **settings) -> tuple[str, str | None]:
    flow = TextStream(texts(), **settings)
    shown = ""
    for token in bytes_as_tokens(text.encode()):
        shown += flow.push(token)
        if flow.stopped_by is not None:
            return shown, flow.stopped_by
    return shown + flow.flush(), flow.stopped_by


def test_stops_across_characters_of_several_tokens() -> None:
    assert answer("x中文y", stop=["文"]) == ("x中", "文")
    assert answer("x中文y", stop=["中文y"], include_stop=True) == ("x中文y", "中文y")
    assert answer("x中文", stop=["文y"]) == ("x中文", None)


def test_min_tokens_lets_early_stops_pass() -> None:
    assert answer("abab", stop=["b"]) == ("a", "b")
    assert answer("abab", stop=["b"], min_tokens=1) == ("a", "b")
    assert answer("abab", stop=["b"], min_tokens=2) == ("aba", "b")
    assert answer("abab", stop=["ba"], min_tokens=2) == ("abab", None)


def test_the_last_characters_can_complete_a_stop() -> None:
    flow = TextStream(texts(), stop=["\ufffd"])
    assert [flow.push(token) for token in bytes_as_tokens(b"a\xe4")] == ["a", ""]
    assert flow.flush() == ""
    assert flow.stopped_by == "\ufffd"


def test_token_texts() -> None:
    special = byte_level().id("<|im_end|>")
    think = byte_level().id("<think>")
    assert special is not None
    assert think is not None
    assert texts().text(special) == "<|im_end|>"
    assert [texts().silent(token) for token in (special, think, 10**6)] == [True, False, True]
    assert texts().text(byte_tokens()[0x80]) == "\ufffd"


def test_bytes_of_tokens() -> None:
    assert [texts().raw(token) for token in byte_tokens()] == [bytes([byte]) for byte in range(256)]
    fallback = TokenTexts(byte_fallback())
    ids = byte_fallback().encode("a\u0301é中", add_special_tokens=False)
    assert [fallback.raw(token) for token in ids] == [b"a", b"\xcc", b"\x81", "é".encode(), "中".encode()]
    special = byte_level().id("<|im_end|>")
    assert special is not None
    assert texts().raw(special) == b"<|im_end|>"


@PROPERTY
@given(any_ids)
def test_bytes_of_tokens_add_up_to_the_text(ids) -> None:
    whole = b"".join(texts().raw(token) for token in ids)
    assert whole.decode(errors="replace") == byte_level().decode(ids, skip_special_tokens=False)
