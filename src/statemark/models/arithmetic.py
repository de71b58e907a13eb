"""A digest of what computes states beside weights and settings: the code and the processor. Knows no model.

States on disk outlive the process that wrote them. A newer kernel may round differently, and so may the C library's
sine on another processor, so a state is only taken up by the same code on the same kind of machine.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_PARTS = (("kernels", "*.so"), ("kernels", "*.py"), ("models", "*.py"))


@functools.cache
def arithmetic_digest() -> str:
    """Hexadecimal; equal in every process that would compute the same bits."""
    return digest_of([path for part, kind in _PARTS for path in sorted((_PACKAGE / part).glob(kind))], machine())


def digest_of(files: list[Path], facts: list[str]) -> str:
    """Digest of the contents of files and of facts, in this order."""
    found = hashlib.blake2b(digest_size=16)
    for content in (*(path.read_bytes() for path in files), *(fact.encode() for fact in facts)):
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Processor and C library, as far as they say who they are."""
    try:
        said = cpuinfo.read_text(errors="replace").split("\n\n")[0]
    except OSError:
        said = ""
    lines = re.findall(r"^(?:vendor_id|cpu family|model|model name|flags)\s*:.*$", said, re.MULTILINE)
    names = os.confstr_names
    library = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in names else ""
    return [platform.machine(), str(library), *lines]
