"""Faults that caches of recurrent state have in practice, planted in this engine on purpose.

`probe` is tested against them, and whoever operates a server can see what each looks like. Nothing here runs unless
`serve --fault NAME --unsafe-faults` asks for it; the engine's only seam is which executor class it is given.
"""

from __future__ import annotations

from statemark.faults.catalogue import FAULTS, Fault, named_fault

__all__ = ["FAULTS", "Fault", "named_fault"]
