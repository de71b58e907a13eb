"""HTTP to OpenAI-compatible servers of any make: who answers, what a request must look like, what an answer says.

What `probe`, `replay` and `record` stand on. Knows neither verdicts nor traces.
"""

from __future__ import annotations

from statemark.client.reply import Reply, Token
from statemark.client.request import Ask
from statemark.client.session import Session
from statemark.client.target import Target

__all__ = ["Ask", "Reply", "Session", "Target", "Token"]
