"""What the disk tier needs of whoever owns the bytes of pages and slots."""

from __future__ import annotations

from typing import Protocol

from statemark.cache.disk.record import U64


class Memory(Protocol):
    """Pages and slots as bytes. The views are writable, and valid while the process runs."""

    def page_memory(self, page: int) -> memoryview: ...
    def slot_memory(self, slot: int) -> memoryview: ...
    def stamps(self, slot: int) -> U64: ...
    def set_stamps(self, slot: int, stamps: U64) -> None: ...
