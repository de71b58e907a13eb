"""A small proxy in front of an OpenAI-compatible server that writes a trace without a word of what was said.

Passing on comes first, digests second: a line is written once an answer has gone out.
"""

from __future__ import annotations
