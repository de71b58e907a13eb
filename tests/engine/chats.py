"""Making prompts of chats for tests, and taking them apart again."""

from __future__ import annotations

from itertools import pairwise

from statemark.engine.chat import ChatPrompt, ChatTemplate
from tests.engine.tiny_tokenizers import byte_level, with_spans

ENCODE = with_spans(byte_level())


def msg(role: str, content: str = "", **more) -> dict:
    return {"role": role, "content": content, **more}


def prompt(source: str, messages: list[dict], **options) -> ChatPrompt:
    return ChatTemplate(source).prompt(ENCODE, messages, **options)


def pieces(made: ChatPrompt) -> list[str]:
    """The text between the turn positions."""
    edges = [0, *made.turn_positions, len(made.token_ids)]
    found = [byte_level().decode(made.token_ids[i:j], skip_special_tokens=False) for i, j in pairwise(edges)]
    assert "".join(found) == made.text
    return found
