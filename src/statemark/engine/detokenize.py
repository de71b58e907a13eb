"""From token ids to text while they come: no half characters, no text that might still become a stop string.

Owns what is safe to show and when an answer ends by its text. Must not know the engine: who acts on a stop is the
caller's business.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

# Tokens kept as context when the window of tokens under decoding moves on. A character is at most four byte tokens,
# and decoders that look at neighbours (to join words with spaces) look at one.
_CONTEXT = 8
_LONGEST_WINDOW = 64
_UNKNOWN = "\ufffd"  # how decoders write bytes that are no character, or not yet


def _byte_symbols() -> dict[str, int]:
    """How byte-level vocabularies spell bytes: printable ones as themselves, the others in order from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_symbols()


class TokenDecoder(Protocol):
    """What is needed of `models.Tokenizer`."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...
    def token(self, token_id: int) -> str: ...


class TokenTexts:
    """Facts about single tokens, remembered for all requests of one tokenizer."""

    def __init__(self, tokenizer: TokenDecoder) -> None:
        self.tokenizer = tokenizer
        self._texts: dict[int, str] = {}
        self._silent: dict[int, bool] = {}

    def text(self, token_id: int) -> str:
        """The token on its own, as shown beside its log-probability."""
        text = self._texts.get(token_id)
        if text is None:
            text = self._texts[token_id] = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text

    def raw(self, token_id: int) -> bytes:
        """The token's bytes, also where they are only a part of a character."""
        text = self.text(token_id)
        if _UNKNOWN not in text:
            return text.encode()
        spelled = self.tokenizer.token(token_id)
        byte = re.fullmatch(
            r"<0x([0-9A-Fa-f]{2})>", spelled
        )  # with byte fallback; a byte level would decode it as it is
        if byte is not None:
            return bytes([int(byte[1], 16)])
        known = all(symbol in _BYTES for symbol in spelled)
        return bytes(_BYTES[symbol] for symbol in spelled) if known else text.encode()

    def silent(self, token_id: int) -> bool:
        """Decoding leaves this token out when it skips special tokens, or always because nobody knows it."""
        silent = self._silent.get(token_id)
        if silent is None:
            skipped = self.tokenizer.decode([token_id], skip_special_tokens=True) == "" != self.text(token_id)
            silent = self._silent[token_id] = skipped or self.tokenizer.token(token_id) == ""
        return silent


class Detokenizer:
    """Text of one growing list of tokens. What `push` and `flush` return adds up to the decoding of the whole.

    Each token decodes a short window again, so a long answer costs no more a token than a short one.
    """

    def __init__(self, texts: TokenTexts, *, skip_special_tokens: bool = True) -> None:
        self._texts = texts
        self._skip = skip_special_tokens
        self._window: list[int] = []
        self._text = ""  # of the window
        self._shown = 0  # characters of it that were returned

    def push(self, token_id: int) -> str:
        """The text that this token settles."""
        if self._skip and self._texts.silent(token_id):
            return ""
        self._window.append(token_id)
        self._text = self._decode(self._window)
        # Unknown characters at the end may be the first bytes of one that isn't complete.
        new = self._show(len(self._text.rstrip(_UNKNOWN)))
        if len(self._window) >= 2 * _CONTEXT:
            new += self._move_window()
        return new

    def flush(self) -> str:
        """What is left when no token follows."""
        left = self._text[self._shown :]
        self._window, self._text, self._shown = [], "", 0
        return left

    def _decode(self, ids: list[int]) -> str:
        return self._texts.tokenizer.decode(ids, skip_special_tokens=self._skip)

    def _show(self, end: int) -> str:
        new = self._text[self._shown : end]
        self._shown = max(self._shown, end)
        return new

    def _move_window(self) -> str:
        """Forget tokens that no longer bear on what follows; returns what they leave to be shown.

        A cut inside a character shows: the rest then decodes to something that the text doesn't end with. One of
        four neighbouring cuts is at a character's start, as none is longer than four tokens.
        """
        settled = self._shown == len(self._text)
        last = len(self._window) - _CONTEXT
        for cut in range(last, last - 4, -1) if settled else ():
            tail = self._decode(self._window[cut:])
            if tail and self._text.endswith(tail):
                break
        else:
            if len(self._window) < _LONGEST_WINDOW:
                return ""
            # So many tokens without a settled end are rubbish, and waiting longer won't mend it.
            cut = len(self._window) - _LONGEST_WINDOW // 2
            tail = self._decode(self._window[cut:])
        gone = max(0, len(self._text) - len(tail))
        new = self._show(gone)
        self._window, self._text, self._shown = self._window[cut:], tail, self._shown - gone
        return new


class StopMatcher:
    """Finds the stop string that is completed first, of several the one that starts first, in text that comes in bits.

    One Knuth-Morris-Pratt automaton a string: each says how much of the newest text it could still need.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops = tuple(stops)
        self._include = include
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that ends it or None)."""
        if not self._stops:
            return text, None
        self._held += text
        start = len(self._held) - len(text)
        for at in range(start, len(self._held)):
            found = self._step(self._held[at])
            if found is not None:
                end = at + 1 if self._include else at + 1 - len(found)
                shown, self._held = self._held[:end], ""
                return shown, found
        safe = len(self._held) - max(self._matched)
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown, None

    def flush(self) -> str:
        """What was held back, when no text follows."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        best: str | None = None
        for i, stop in enumerate(self._stops):
            matched = self._matched[i]
            while matched and stop[matched] != character:
                matched = self._fallbacks[i][matched - 1]
            matched += stop[matched] == character
            self._matched[i] = matched
            if matched == len(stop) and (best is None or len(stop) > len(best)):
                best = stop
        return best


def _fallbacks(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is its suffix too."""
    table = [0] * len(stop)
    length = 0
    for i in range(1, len(stop)):
        while length and stop[i] != stop[length]:
            length = table[length - 1]
        length += stop[i] == stop[length]
        table[i] = length
    return table


class TextStream:
    """The text of one choice: tokens in, showable text out, and whether a stop string ended it."""

    def __init__(
        self,
        texts: TokenTexts,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self.stopped_by: str | None = None
        self._detokenizer = Detokenizer(texts, skip_special_tokens=skip_special_tokens)
        self._matcher = StopMatcher(stop, include=include_stop)
        self._unscanned = min_tokens  # tokens whose text can't end the answer

    def push(self, token_id: int) -> str:
        """Text that may be shown now. When it sets `stopped_by`, that was the last of it."""
        text = self._detokenizer.push(token_id)
        if self._unscanned > 0:
            self._unscanned -= 1
            return text
        return self._scan(text)

    def flush(self) -> str:
        """The rest, when the answer ended for another reason. That rest too can complete a stop string."""
        shown = self._scan(self._detokenizer.flush())
        return shown if self.stopped_by is not None else shown + self._matcher.flush()

    def _scan(self, text: str) -> str:
        shown, self.stopped_by = self._matcher.push(text)
        return shown
