"""Replays traces of real traffic against live servers of any make, and reports what their users would feel.

Workloads, the drive, and measurements as plain records. Gives no verdict on answers: that is `probe`.
"""

from __future__ import annotations
