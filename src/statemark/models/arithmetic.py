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

from statemark.kernels import _core

_PACKAGE = Path(__file__).resolve().parent.parent


@functools.cache
def arithmetic_digest() -> str:
    """Hexadecimal; equal in every process that would compute the same bits."""
    return digest_of(arithmetic_files(), machine())


def arithmetic_files() -> list[Path]:
    """The compiled kernels, which an editable installation has elsewhere, and the Python that calls them."""
    python = [path for part in ("kernels", "models") for path in sorted((_PACKAGE / part).glob("*.py"))]
    return [Path(_core.__file__), *python]


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
