"""The disk tier: checkpoints of marks in files, found again by the next process, never trusted blindly.

    record.py   one checkpoint as bytes: header, checksums, payload
    files.py    bytes in and out of files
    folder.py   the directory: which checkpoints exist, room for new ones, what goes first
    pace.py     whether reading is faster than computing, from what was measured
    worker.py   a queue of checkpoints to write or to read, and the thread that empties it
    spill.py    which marks are written, and how
    restore.py  from a checkpoint to a mark in memory
    tier.py     both, as the cache and the engine see them

Knows pages and slots as memory that somebody lends; like the rest of the cache, neither kernels nor models.
"""

from statemark.cache.disk.folder import Folder
from statemark.cache.disk.memory import Memory
from statemark.cache.disk.pace import Always, Pace
from statemark.cache.disk.record import Layout
from statemark.cache.disk.tier import DiskTier

__all__ = ["Always", "DiskTier", "Folder", "Layout", "Memory", "Pace"]
