"""How models of each family mark reasoning and tool calls, and which of these a model uses. Knows no model by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from statemark.errors import ConfigurationError
from statemark.parsing.calls import Body
from statemark.parsing.json_calls import json_calls
from statemark.parsing.python_calls import python_calls
from statemark.parsing.xml_calls import FUNCTION, FUNCTION_END, xml_calls

THINK, THINK_END = "<think>", "</think>"
_TAG, _TAG_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolFormat:
    """`markers` maps what begins calls to what ends them ("" for nothing). One in `inner` is part of the body.

    `broken_end` is what ends a broken call that has no end marker; "" for the end of the answer.
    """

    name: str
    markers: dict[str, str]
    body: Body
    inner: tuple[str, ...] = ()
    broken_end: str = ""

    def end_of_broken(self, marker: str) -> list[str]:
        end = self.markers[marker] or self.broken_end
        return [end] if end else []


TOOL_FORMATS = {
    made.name: made
    for made in (
        # Qwen3, Nous Hermes, Granite 4: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
        ToolFormat("hermes", {_TAG: _TAG_END}, json_calls),
        # Qwen3-Coder, Qwen3.5: tags inside the same markers, which the models sometimes leave out.
        ToolFormat(
            "qwen3_coder", {_TAG: _TAG_END, FUNCTION: ""}, xml_calls, inner=(FUNCTION,), broken_end=FUNCTION_END
        ),
        ToolFormat("lfm2", {"<|tool_call_start|>": "<|tool_call_end|>"}, python_calls),
        # Granite 3: one list after a token without an end; 4: as Hermes.
        ToolFormat("granite", {"<|tool_call|>": "", _TAG: _TAG_END}, json_calls),
    )
}
ALIASES = {"qwen3_xml": "qwen3_coder", "qwen": "hermes", "qwen3": "hermes"}


@dataclass(frozen=True)
class ChatFormat:
    """What a model's answers are made of. `tools` is None where calls can't be told from text."""

    tools: ToolFormat | None = None
    thinks: bool = False

    def __str__(self) -> str:
        thinks = "reasoning in think tags" if self.thinks else "no reasoning told apart"
        return f"{thinks}, {f'tool calls as {self.tools.name}' if self.tools else 'no tool calls'}"

    def markers(self) -> list[str]:
        """All texts that must reach the parser, for tokenizers that would leave them out as special tokens."""
        found = [THINK, THINK_END] if self.thinks else []
        for begin, end in self.tools.markers.items() if self.tools else ():
            found += [begin, end]
        return [marker for marker in found if marker]


def choose_format(
    template: str | None, has_token: Callable[[str], bool], *, tools: str = "auto", reasoning: str = "auto"
) -> ChatFormat:
    """From the chat template, and where it is silent from the vocabulary; a name other than "auto" decides."""
    template = template or ""
    known = (*TOOL_FORMATS, *ALIASES)
    if tools not in ("auto", "none", *known):
        raise ConfigurationError(
            f"tool_call_parser {tools!r} is unknown", hint=f"it is auto, none or one of {', '.join(known)}"
        )
    if reasoning not in ("auto", "none", "think"):
        raise ConfigurationError(f"reasoning_parser {reasoning!r} is unknown", hint="it is auto, none or think")
    name = _tool_format(template, has_token) if tools == "auto" else ALIASES.get(tools, tools)
    thinks = reasoning == "think"
    if reasoning == "auto":
        thinks = THINK_END in template or (has_token(THINK) and has_token(THINK_END))
    return ChatFormat(TOOL_FORMATS.get(name), thinks)


def _tool_format(template: str, has_token: Callable[[str], bool]) -> str:
    if FUNCTION in template and "<parameter=" in template:
        return "qwen3_coder"
    if "<|tool_call_start|>" in template or "<|tool_list_start|>" in template:
        return "lfm2"
    if "<|tool_call|>" in template:
        return "granite"
    if _TAG in template:
        return "hermes"
    # Templates needn't show a call: some only print what the client sends back as the message's text.
    for token, name in (("<|tool_call_start|>", "lfm2"), ("<|tool_call|>", "granite"), (_TAG, "hermes")):
        if has_token(token):
            return name
    return "none"


HEADER_TOKENS = 16
"""Tokens at a prompt's end that can hold a generation header's think tag and the white space after it."""


def opens_reasoning(prompt: str, continued: str | None = None) -> bool:
    """Whether an answer to this prompt begins inside a think section.

    The generation header may open one (and may close it again: then not). `continued` is the text of the message that
    the answer goes on with, if it goes on with one.
    """
    if continued is not None:
        return continued.rfind(THINK) > continued.rfind(THINK_END)
    return prompt.rstrip().endswith(THINK)
