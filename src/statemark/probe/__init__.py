"""Asks a live server whether its answers depend on its prefix cache: exact, drifting or contaminated.

Documents, cells and their measurement, and a judge that sees measurements only. Works on servers of any make.
"""

from __future__ import annotations
