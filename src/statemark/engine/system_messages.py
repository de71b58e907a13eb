"""System messages behind the beginning, which agents send as reminders and many chat templates refuse or leave out.

They stay where they were said, so that a conversation's prompts go on beginning alike: with all of them put in front,
each new one would make the whole conversation new. Knows no template: it is given a function that renders, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from statemark.errors import InvalidRequestError

Message = dict[str, Any]


def rendered(render: Callable[[list[Message]], str], messages: list[Message]) -> tuple[list[Message], str]:
    """What `render` makes of the messages, and the messages that it was made of.

    Those are others only if the template refuses the given ones, or doesn't show all that they say, and takes them with
    `in_turns`. What it says against the given ones is what is raised.
    """
    changed = in_turns(messages)
    if changed == messages:
        return messages, render(messages)
    try:
        text = render(messages)
    except InvalidRequestError:
        try:
            return changed, render(changed)
        except InvalidRequestError:
            pass
        raise
    if all(message["content"].strip() in text for message in messages if message["role"] == "system"):
        return messages, text
    try:
        return changed, render(changed)
    except InvalidRequestError:
        return messages, text


def in_turns(messages: list[Message]) -> list[Message]:
    """With one system message at most, at the beginning. Later ones end the turn of the user or tool before them."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if message["role"] != "system" or last is None:
            found.append(message)
        elif last["role"] == "assistant":
            found.append({"role": "user", "content": _reminder(message)})
        else:
            more = message["content"] if last["role"] == "system" else _reminder(message)
            found[-1] = {**last, "content": f"{last['content']}\n\n{more}"}
    return found


def _reminder(message: Message) -> str:
    return f"<system-reminder>\n{message['content']}\n</system-reminder>"
