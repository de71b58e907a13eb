"""Ctrl-C waits for the end of a step: an exception between computing and book-keeping would leave states ahead of
what is known of them. Knows nothing of what a step does.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_after() -> Iterator[None]:
    """Hold SIGINT back while the block runs, then deliver it. Does nothing outside the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])
