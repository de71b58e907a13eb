"""What models write, taken apart: think sections and tool calls in the formats of the supported families.

Knows no HTTP and no engine: text in, events out.
"""

from statemark.parsing.answer import AnswerParser
from statemark.parsing.calls import Tools
from statemark.parsing.events import (
    Call,
    CallArguments,
    CallBroken,
    CallEnd,
    CallStart,
    Content,
    Event,
    ParsedAnswer,
    Reasoning,
)
from statemark.parsing.formats import (
    ALIASES,
    HEADER_TOKENS,
    TOOL_FORMATS,
    ChatFormat,
    ToolFormat,
    choose_format,
    opens_reasoning,
)

__all__ = [
    "ALIASES",
    "HEADER_TOKENS",
    "TOOL_FORMATS",
    "AnswerParser",
    "Call",
    "CallArguments",
    "CallBroken",
    "CallEnd",
    "CallStart",
    "ChatFormat",
    "Content",
    "Event",
    "ParsedAnswer",
    "Reasoning",
    "ToolFormat",
    "Tools",
    "choose_format",
    "opens_reasoning",
]
